-- Takes a lock away, wakes the first two who wait for it, and tells the holder. KEYS: the lock, the waiters.
-- ARGV: '=' and the mark that the lock must have (see hold.lua), or 'any'.
local held = value_of(KEYS[1])
if not held then return 0 end
if ARGV[1] ~= 'any' and ARGV[1] ~= '=' .. mark_of_hold(held) then return 0 end
redis.call('DEL', KEYS[1])
wake(KEYS[2], KEYS[1])
local owner = owner_of(held)
local vote = owner and vote_of(held, owner)
if vote then redis.pcall('PUBLISH', vote[CHANNEL], '0\30' .. owner) end
return 1
