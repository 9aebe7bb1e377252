-- Prolongs many locks, each for who holds it with its fence, or (with a ttl of 0) only says how long it
-- lasts. KEYS: the node, then for each the lock, the vote.
-- ARGV: quorum, channel of the client, then for each owner, last fence or '' for any (to ask only), number of
-- fences, counter to adopt or '', ttl in ms or 0; process.
-- Answers for each {1, counter, 0, ms left} | {2, counter}: the owner's, but not with this fence
-- | {0, -1, '', 0} | {-1, why} | {-2, quorum} | {-4}: the vote is none, but a key of another type
local refused = refusal(redis.call('HMGET', KEYS[1], 'run_id', 'state', 'quorum'))
local channel = ARGV[2]

local function renew(lock, key, owner, fence, fences, adopt, ttl)
  local vote = read('HMGET', key, 'counter', 'fence', 'fences', 'channel')
  if vote.err then return {-4} end
  if not vote[1] or not is_mine(value_of(lock), owner) then return {0, -1, '', 0} end
  local adopts = adopt ~= '' and vote[1] == adopt
  if not adopts and fence ~= '' and not has_fence(vote, fence, fences) then return {2, tonumber(vote[1])} end
  if ttl ~= '0' then
    -- First: this is carried out where the memory is used up, and so is what follows in the same script.
    local left = lasting(lock, ttl)
    redis.call('PEXPIRE', lock, left)
    redis.call('PEXPIRE', key, left + 1000)
    -- Who takes a lock over is to hear of a forced release.
    if vote[4] ~= channel then redis.call('HSET', key, 'channel', channel) end
    if adopts then redis.call('HSET', key, 'fence', fence) end
  end
  return {1, tonumber(vote[1]), 0, redis.call('PTTL', lock)}
end

local out = {}
for k = 2, #KEYS, 2 do
  local a = (k / 2 - 1) * 5 + 3
  local answer = refused or renew(KEYS[k], KEYS[k + 1], unpack(ARGV, a, a + 4))
  table.insert(out, #out + 1, answer)
end
return out
