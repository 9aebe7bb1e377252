-- Looks after a lock that was handed over: whoever did not take it up loses its turn.
-- KEYS: those of grant.lua. ARGV: may pause. Answers when to look again in ms, or -1.
if redis.call('EXISTS', queue) == 0 then return -1 end
local holder = value_of(lock)
if holder == false then
  local _, again = pass_on(clock(), nil, ARGV[1] == '1')
  return again
end
if type(holder) == 'string' then
  local w = read_waiter(holder)
  local left = redis.call('PTTL', lock)
  -- Somebody may have taken its expiry away.
  if w and w.given and left >= 0 then return left + 10 end
end
return -1
