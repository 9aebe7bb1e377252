-- KEYS: those of keys.lua. ARGV: '=' and the mark that the lock must have, or 'any'; may pause. A
-- lock that is no string, as Redisson's, counts as one with an empty value.
-- Answers {freed, look again in ms or -1}.
local expected, may_pause = ARGV[1], ARGV[2] == '1'
local holder = value_of(lock)
if holder == false then return {0, -1} end
local shown, _, letter, client = shown_of(holder)
if expected ~= 'any' and expected ~= '=' .. shown then return {0, -1} end
redis.call('DEL', lock)
next_fences(1)
if letter == 'h' then leave_turn(holder) end
local _, again = pass_on(nil, may_pause)
if letter then redis.pcall('PUBLISH', 'distlock:' .. client, 'l' .. shown) end
return {1, again}
