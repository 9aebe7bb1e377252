-- Prolongs a lock for who holds it, or (with a ttl of 0) only says how long it lasts.
-- KEYS: the node, the lock, the vote. ARGV: quorum, owner, ttl in ms or 0.
-- Answers {1, counter, ms left} | {0} | {-1, why} | {-2, quorum}
local refused = refusal(redis.call('HMGET', KEYS[1], 'run_id', 'state', 'quorum'))
if refused then return refused end
local counter = tonumber(redis.call('HGET', KEYS[3], 'counter') or nil)
if not counter or not is_mine(value_of(KEYS[2]), ARGV[2]) then return {0} end
if ARGV[3] ~= '0' then
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
  redis.call('PEXPIRE', KEYS[3], ARGV[3] + 1000)
end
return {1, counter, redis.call('PTTL', KEYS[2])}
