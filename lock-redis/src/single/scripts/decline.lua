-- The lock was handed to a waiter that is not there any more, and goes on to the next one.
-- KEYS: those of keys.lua. ARGV: the owner, may pause.
-- Answers {freed, look again in ms or -1}.
local owner, may_pause = ARGV[1], ARGV[2] == '1'
local w = read_waiter(owner)
-- Once it is taken up it is nobody's to decline.
if not (w and w.given) or value_of(lock) ~= owner then return {0, -1} end
drop_waiter(owner)
redis.call('DEL', lock, hold)
local _, again = pass_on(nil, may_pause)
return {1, again}
