-- Prolongs a lock for who holds it with this fence, or (with a ttl of 0) only says how long it lasts.
-- KEYS: the node, the lock, the vote.
-- ARGV: quorum, owner, fence or '' for any (to ask only), counter to adopt or '', ttl in ms or 0, channel
-- of the client.
-- Answers {1, counter, 0, ms left} | {2, counter}: the owner's, but not with this fence | {0, -1, '', 0}
-- | {-1, why} | {-2, quorum}
local refused = refusal(redis.call('HMGET', KEYS[1], 'run_id', 'state', 'quorum'))
if refused then return refused end
local vote = redis.call('HMGET', KEYS[3], 'counter', 'fence', 'channel')
if not vote[1] or not is_mine(value_of(KEYS[2]), ARGV[2]) then return {0, -1, '', 0} end
if ARGV[4] ~= '' and vote[1] == ARGV[4] then
  redis.call('HSET', KEYS[3], 'fence', ARGV[3])
elseif ARGV[3] ~= '' and not has_fence(vote, ARGV[3]) then
  return {2, tonumber(vote[1])}
end
if ARGV[5] ~= '0' then
  redis.call('PEXPIRE', KEYS[2], ARGV[5])
  redis.call('PEXPIRE', KEYS[3], ARGV[5] + 1000)
  -- Who takes a lock over is to hear of a forced release.
  if vote[3] ~= ARGV[6] then redis.call('HSET', KEYS[3], 'channel', ARGV[6]) end
end
return {1, tonumber(vote[1]), 0, redis.call('PTTL', KEYS[2])}
