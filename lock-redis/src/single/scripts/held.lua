-- Whether the lock is held by `who`: an owner, or `fences|owner` of a claim that took a lock over. Of
-- that nothing is believed: the holder's record must show this owner with exactly these fences.
local function is_held_by(who, lock, hold)
  local me = string.sub(who, -32)
  if value_of(lock) ~= me then return false end
  if who == me then return true end
  local record = value_of(hold)
  return type(record) == 'string' and string.sub(record, 1, #who + 1) == who .. '|'
end

