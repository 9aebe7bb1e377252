-- KEYS: the node, the lock, the waiters.
-- ARGV: quorum, owner, number of the try, ttl in ms, proposal, channel of the client, how long it has
-- waited in µs or '' if it does not wait, label, number of fences, how far ahead of the clock a proposal may
-- be, in µs, process.
-- Answers {1, counter, mark, -1} | {0, ms left, who, mark} | {-1, why} | {-2, quorum} | {-3, mark}
local owner, try, ttl, proposal = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local channel, waited, fences = ARGV[6], ARGV[7], tonumber(ARGV[9])
local node = redis.call('HMGET', KEYS[1], 'run_id', 'state', 'quorum', 'mark')
local refused = refusal(node)
if refused then return refused end
local mark = tonumber(node[4] or '0')

-- In µs, as digits.
local function read_clock()
  local t = redis.call('TIME')
  return t[1] .. string.sub('00000' .. t[2], -6)
end

local held = value_of(KEYS[2])
local vote = vote_of(held, owner)
if vote then
  ttl = lasting(KEYS[2], ttl)
  -- An older try of the same claim that arrives late changes nothing: what undoes it must not
  -- undo the newer one.
  if tonumber(vote[TRY]) < tonumber(try) then
    vote[TRY] = try
    write_vote(KEYS[2], owner, vote, 'PX', ttl)
  else
    redis.call('PEXPIRE', KEYS[2], ttl)
  end
  return {1, tonumber(vote[COUNTER]), mark, -1}
elseif held then
  if waited ~= '' then
    -- By the clock of this node: one client whose clock is ahead would stand last for ever.
    local add = {'ZADD', KEYS[3], digits(read_clock() - tonumber(waited)), channel}
    local added = redis.pcall(unpack(add))
    -- Where the memory is used up, it waits without being woken.
    if type(added) == 'table' and not string.find(added.err or '', 'OOM', 1, true) then redis.call(unpack(add)) end
    redis.call('PEXPIRE', KEYS[3], 10000)
  end
  -- Never empty, which would mean that the lock is free.
  local who = type(held) == 'string' and held ~= '' and string.sub(held, 1, 8) or '?'
  return {0, redis.call('PTTL', KEYS[2]), who, mark}
end

-- Above the mark, which is above all that this node has counted for any name: nothing is kept of a name that is free.
-- One client whose clock is in the next century must not use up the counters, nor put them further ahead of
-- the clock than the wait after a loss makes up for.
local now = read_clock()
local counter = math.max(mark + 1, math.min(proposal, now + tonumber(ARGV[10]))) + fences - 1
if counter > 9007199254740991 then return {-3, mark} end
-- Mostly it is what was proposed, which need not be printed again.
local last = counter == proposal and ARGV[5] or digits(counter)
redis.call('HSET', KEYS[1], 'mark', last)
write_vote(KEYS[2], owner, {try, last, now, ARGV[9], '', channel, ARGV[8]}, 'PX', ttl)
-- At its first try, it has not waited yet.
if waited ~= '' and try ~= '1' then redis.call('ZREM', KEYS[3], channel) end
return {1, counter, counter, -1}
