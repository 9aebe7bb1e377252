-- What names the hold with this value on a node: what stands before the first dot, which is the owner of one of ours.
local function mark_of_hold(held)
  return type(held) == 'string' and mark_of(string.match(held, '^[^.]*')) or ''
end
