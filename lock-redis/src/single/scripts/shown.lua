-- What names a hold, and its record: a word for another version of this library, and nothing for a plain client. With one of ours
-- also its letter and client.
local function shown_of(value)
  local letter, owner, _, _, client = read_lock(value)
  if letter then return owner, string.sub(value, 12), letter, client end
  local is_strange = type(value) == 'string' and string.find(value, '^distlock%d')
  return mark_of(value), is_strange and 'unknown' or ''
end
