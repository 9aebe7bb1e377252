-- Gives a lock up, and wakes the first two who wait for it.
-- KEYS: the lock, the waiters.
-- ARGV: owner, try or '' for any of them, '1' to wake, channel that waits no more or '', last fence or '' for any,
-- number of fences.
-- Answers 1 if there was a lock of this owner, else 0. Needs no admission: it takes only away.
local owner, try = ARGV[1], ARGV[2]
if ARGV[4] ~= '' then redis.call('ZREM', KEYS[2], ARGV[4]) end
local held = value_of(KEYS[1])
if not is_mine(held, owner) then return 0 end
if try ~= '' or ARGV[5] ~= '' then
  local vote = vote_of(held, owner)
  if not vote or (try ~= '' and vote[TRY] ~= try) then return 0 end
  if ARGV[5] ~= '' and not has_fence(vote, ARGV[5], ARGV[6]) then return 0 end
end
redis.call('DEL', KEYS[1])
if ARGV[3] == '1' then wake(KEYS[2], KEYS[1]) end
return 1
