-- The revisions of a flow, or of all flows.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  flow; empty for all
-- Reply    for each flow an array: flow, active revision, and each revision and what is kept of it
local flows = ARGV[1] == '' and call('SMEMBERS', prefix .. 'flows') or { ARGV[1] }
local replies = {}
for _, flow in ipairs(flows) do
  local reply = { flow, call('HGET', prefix .. 'active', flow) or '' }
  for _, value in ipairs(call('HGETALL', prefix .. 'revisions:' .. flow)) do
    reply[#reply + 1] = value
  end
  replies[#replies + 1] = reply
end
return replies
