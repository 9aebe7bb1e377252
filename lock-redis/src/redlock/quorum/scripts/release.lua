-- Gives a lock up, and wakes the first two who wait for it.
-- KEYS: the node, the lock, the vote, the waiters.
-- ARGV: quorum, owner, try or '' for any of them, '1' to wake, payload, channel that waits no more or '',
-- last fence or '' for any, number of fences.
-- Answers 1 if there was a lock of this owner, else 0. Needs no admission: it takes only away.
local owner, try = ARGV[2], ARGV[3]
if ARGV[6] ~= '' then redis.call('ZREM', KEYS[4], ARGV[6]) end
local held = value_of(KEYS[2])
if not is_mine(held, owner) or (try ~= '' and held ~= owner .. '.' .. try) then return 0 end
if ARGV[7] ~= '' then
  local vote = redis.call('HMGET', KEYS[3], 'counter', 'fence', 'fences')
  if not has_fence(vote, ARGV[7], ARGV[8]) then return 0 end
end
redis.call('DEL', KEYS[2])
-- Kept for a moment: a lock that changes hands quickly counts on from here, and not from the mark,
-- which other names raise too.
redis.call('PEXPIRE', KEYS[3], 1000)
if ARGV[4] == '1' then wake(KEYS[4], ARGV[5]) end
return 1
