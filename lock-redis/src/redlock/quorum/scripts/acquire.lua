-- KEYS: the node, the lock, the vote, the waiters.
-- ARGV: quorum, owner, number of the try, ttl in ms, proposal, channel of the client, how long it has
-- waited in µs or '' if it does not wait, label, number of fences, how far ahead of the clock a proposal may
-- be, in µs, process.
-- The counter is the last fence of the block.
-- Answers {1, counter, mark, -1} | {0, ms left, who, mark} | {-1, why} | {-2, quorum} | {-3, counter}
local owner, try, ttl, proposal = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local channel, waited, fences = ARGV[6], ARGV[7], tonumber(ARGV[9])
local node = redis.call('HMGET', KEYS[1], 'run_id', 'state', 'quorum', 'mark', 'floor')
local refused = refusal(node)
if refused then return refused end
local mark = tonumber(node[4] or '0')

local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local held = value_of(KEYS[2])
if is_mine(held, owner) then
  ttl = lasting(KEYS[2], ttl)
  local counter = tonumber(redis.call('HGET', KEYS[3], 'counter') or nil)
  if counter then
    -- An older try of the same claim that arrives late changes nothing: what undoes it must not
    -- undo the newer one.
    if tonumber(string.sub(held, #owner + 2)) < tonumber(try) then
      redis.call('SET', KEYS[2], owner .. '.' .. try, 'PX', ttl)
    else
      redis.call('PEXPIRE', KEYS[2], ttl)
    end
    redis.call('PEXPIRE', KEYS[3], ttl + 1000)
    return {1, counter, mark, -1}
  end
elseif held then
  if waited ~= '' then
    -- By the clock of this node: one client whose clock is ahead would stand last for ever.
    local add = {'ZADD', KEYS[4], digits(now - tonumber(waited)), channel}
    local added = redis.pcall(unpack(add))
    -- Where the memory is used up, it waits without being woken.
    if type(added) == 'table' and not string.find(added.err or '', 'OOM', 1, true) then redis.call(unpack(add)) end
    redis.call('PEXPIRE', KEYS[4], 10000)
  end
  -- Never empty, which would mean that the lock is free.
  local who = type(held) == 'string' and held ~= '' and string.sub(held, 1, 8) or '?'
  return {0, redis.call('PTTL', KEYS[2]), who, mark}
end

-- The counter may have been forgotten when the lock was idle; the mark never is less. One from before an
-- admission may have lost what came after it, so it counts on from what the admission was seeded with.
local counter = tonumber(redis.call('HGET', KEYS[3], 'counter') or nil) or mark
counter = math.max(counter, tonumber(node[5] or '0'))
-- One client whose clock is in the next century must not use up the counters, nor put them further ahead of
-- the clock than the wait after a loss makes up for.
local last = math.max(counter + 1, math.min(proposal, now + tonumber(ARGV[10]))) + fences - 1
if last > 9007199254740991 then return {-3, counter} end
counter = last
mark = math.max(mark, counter)
redis.call('HSET', KEYS[1], 'mark', digits(mark))
-- All fields that there are: nothing of an earlier hold stays.
redis.call('HSET', KEYS[3], 'counter', digits(counter), 'since', digits(now), 'label', ARGV[8],
  'channel', channel, 'fences', ARGV[9], 'fence', '')
redis.call('PEXPIRE', KEYS[3], ttl + 1000)
redis.call('SET', KEYS[2], owner .. '.' .. try, 'PX', ttl)
if waited ~= '' then redis.call('ZREM', KEYS[4], channel) end
return {1, counter, mark, -1}
