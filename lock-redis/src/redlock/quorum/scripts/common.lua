-- Why this node gives no vote; nil if it does. KEYS[1] is the node's own record, of all names. The first argument is
-- the quorum as the client knows it, the last one the process that runs this, for which the client has asked over the
-- same connection: a connection ends with the process, so one that was rebuilt after a restart cannot speak for the
-- old process.
local function refusal(node)
  if not node[2] then return {-1, 'none'} end
  if node[1] ~= ARGV[#ARGV] then return {-1, 'restarted'} end
  if node[3] ~= ARGV[1] then return {-2, node[3] or ''} end
  if node[2] ~= 'admitted' then return {-1, node[2]} end
end
