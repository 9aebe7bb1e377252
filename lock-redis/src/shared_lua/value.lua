-- What a command reads of a key: an error if the key is of another type, which concerns this key and no other.
-- Any other refusal (a right that was taken away) says nothing about the key, so it ends the script.
local function read(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err and not string.find(answer.err, 'WRONGTYPE', 1, true) then
    return redis.call(...)
  end
  return answer
end

-- What a lock's key holds: a string, or false if there is none. A key of another type is a foreign lock, and a
-- table here.
local function value_of(key)
  return read('GET', key)
end
