-- The value of a lock of ours is `distlock1` and a letter, and behind bars the owner, the fences, since when, the
-- client, the label. The letter: n if nobody waits, q if somebody may, h if the lock was handed to a waiter that has not
-- taken it up. Any other value is that of a plain client.

-- The letter if `who` holds the lock with this value, else nil. `who` is an owner and a bar, and for a claim that took the
-- lock over also the fences and a bar. Of that nothing is believed: the value must show this owner with exactly these fences.
local function letter_of(value, who)
  if type(value) == 'string' and string.sub(value, 1, 9) == 'distlock1' and string.sub(value, 12, 11 + #who) == who then
    return string.sub(value, 10, 10)
  end
end

-- Letter, owner, fences, since when, client and label of a lock of ours; nil for any other value.
local function read_lock(value)
  if type(value) ~= 'string' then return nil end
  return string.match(value, '^distlock1([nqh])|(%x+)|([%d+]+)|(%d+)|(%x+)|(.*)$')
end
