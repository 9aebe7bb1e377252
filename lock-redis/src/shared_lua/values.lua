-- What these keys hold from the `first` on, as `value_of` says of each. By two commands for a thousand of them, unless one
-- is of another type than a string.
local function values_of(keys, first)
  local values = {}
  for from = first, #keys, 1000 do
    local to = math.min(from + 999, #keys)
    local found, missing = redis.call('MGET', unpack(keys, from, to)), 0
    for k = from, to do
      values[k] = found[k - from + 1]
      if not values[k] then missing = missing + 1 end
    end
    if missing > 0 and redis.call('EXISTS', unpack(keys, from, to)) > to - from + 1 - missing then
      for k = from, to do values[k] = values[k] or value_of(keys[k]) end
    end
  end
  return values
end
