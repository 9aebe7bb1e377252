-- The value of a lock of ours: the owner id, a dot, and these, with a bar between them. The counter is the last fence
-- of the block; `ADOPTED` is the fence at which a renewal has adopted the node, or nothing.
local TRY, COUNTER, SINCE, FENCES, ADOPTED, CHANNEL, LABEL = 1, 2, 3, 4, 5, 6, 7
local FORM = '^(%d+)|(%d+)|(%d+)|(%d+)|(%d*)|([^|]*)|(.*)$'

local function is_mine(value, owner)
  return type(value) == 'string' and string.sub(value, 1, #owner + 1) == owner .. '.'
end

-- What a value says behind its owner id, if this owner wrote it. To read it takes as long as a few commands.
local function vote_of(value, owner)
  if not is_mine(value, owner) then return end
  local vote = {string.match(value, FORM, #owner + 2)}
  return vote[1] and vote
end

-- The owner id in a value that may be one of ours.
local function owner_of(value)
  return type(value) == 'string' and string.match(value, '^(%x+)%.')
end

local function write_vote(lock, owner, vote, ...)
  local try, counter, since, fences, adopted, channel, label = unpack(vote)
  local hold = try .. '|' .. counter .. '|' .. since .. '|' .. fences .. '|' .. adopted
  redis.call('SET', lock, owner .. '.' .. hold .. '|' .. channel .. '|' .. label, ...)
end

-- Whether a vote stands for a block of so many fences with this last one: the node has counted just that, or it
-- joined the hold later and was adopted by a renewal that a quorum of the others had answered.
local function has_fence(vote, fence, fences)
  return (vote[COUNTER] == fence or vote[ADOPTED] == fence) and vote[FENCES] == fences
end

-- Lua prints only 14 digits by itself.
local function digits(number)
  return string.format('%.0f', number)
end
