-- The lock was handed to a waiter that is not there any more, and goes on to the next one.
-- KEYS: those of keys.lua. ARGV: who (see record.lua), may pause.
-- Answers {freed, look again in ms or -1}.
local who, may_pause = ARGV[1], ARGV[2] == '1'
local value = value_of(lock)
-- Once it is taken up it is nobody's to decline.
if letter_of(value, who) ~= 'h' then return {0, -1} end
leave_turn(value)
local state, again = pass_on(nil, may_pause)
if state ~= 'given' then redis.call('DEL', lock) end
return {1, again}
