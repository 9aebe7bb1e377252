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
