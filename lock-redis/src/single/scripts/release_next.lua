-- Goes on where release.lua leaves the lock to those that wait for it.
if letter == 'h' then leave_turn(value) end
local state, again = pass_on(nil, may_pause)
if letter and state ~= 'given' then redis.call('DEL', lock) end
return {freed, again}
