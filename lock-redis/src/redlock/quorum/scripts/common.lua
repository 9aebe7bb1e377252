-- Shared by the scripts of a Redlock node. KEYS[1] is the node's own record, of all names.

-- Why this node gives no vote; nil if it does. The first argument is the quorum as the client knows it, the last one
-- the process that runs this, for which the client has asked over the same connection: a connection ends with the
-- process, so one that was rebuilt after a restart cannot speak for the old process.
local function refusal(node)
  if not node[2] then return {-1, 'none'} end
  if node[1] ~= ARGV[#ARGV] then return {-1, 'restarted'} end
  if node[3] ~= ARGV[1] then return {-2, node[3] or ''} end
  if node[2] ~= 'admitted' then return {-1, node[2]} end
end

-- Whether this value of a lock was written by this owner: the owner id, and which of its tries.
local function is_mine(value, owner)
  return type(value) == 'string' and string.sub(value, 1, #owner + 1) == owner .. '.'
end

-- Whether a vote {counter, fence, fences} stands for a block of so many fences with this last one: the
-- node has counted just that, or it joined the hold later and was adopted by a renewal that a quorum of
-- the others had answered.
local function has_fence(vote, fence, fences)
  return (vote[1] == fence or vote[2] == fence) and (vote[3] or '1') == fences
end

-- Lua prints only 14 digits by itself.
local function digits(number)
  return string.format('%.0f', number)
end
