-- What a lock's key holds: a string, or false if there is none. A key of another type, which GET
-- refuses, is a foreign lock, and a table here. Any other refusal (a right that was taken away) says
-- nothing about the lock, so it ends the script.
local function value_of(key)
  local value = redis.pcall('GET', key)
  if type(value) == 'table' and not string.find(value.err or '', 'WRONGTYPE', 1, true) then
    return redis.call('GET', key)
  end
  return value
end

-- Whether the lock is held by `who`: an owner, or `fences|owner` of a claim that took a lock over. Of
-- that nothing is believed: the holder's record must show this owner with exactly these fences.
local function is_held_by(who, lock, hold)
  local me = string.sub(who, -32)
  if value_of(lock) ~= me then return false end
  if who == me then return true end
  local record = value_of(hold)
  return type(record) == 'string' and string.sub(record, 1, #who + 1) == who .. '|'
end

