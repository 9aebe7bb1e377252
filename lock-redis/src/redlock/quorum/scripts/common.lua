-- Shared by the scripts of a Redlock node. KEYS[1] is the node's own record, of all names.

-- The process that runs this. Asked for inside of the script, so that a connection which was rebuilt
-- after a restart cannot speak for the old process.
local function run_id()
  return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
end

-- Why this node gives no vote; nil if it does. ARGV[1] is the quorum as the client knows it.
local function refusal(node)
  if not node[2] then return {-1, 'none'} end
  if node[1] ~= run_id() then return {-1, 'restarted'} end
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
