-- The revisions of a flow, or of all flows.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  flow; empty for all
-- ARGV[2]  revision that is wanted, `=` for the active one; empty for all
-- Reply    for each flow an array: flow, active revision, and each revision, what is kept of it and
--          who registered it, which is empty for one of an earlier flowgate
local flows = ARGV[1] == '' and call('SMEMBERS', prefix .. 'flows') or { ARGV[1] }
local replies = {}
for _, flow in ipairs(flows) do
  local key, active = prefix .. 'revisions:' .. flow, call('HGET', prefix .. 'active', flow) or ''
  local reply, kept = { flow, active }, {}
  if ARGV[2] == '' then
    kept = call('HGETALL', key)
  else
    local wanted = ARGV[2] == '=' and active or ARGV[2]
    local found = call('HGET', key, wanted)
    if found then kept = { wanted, found } end
  end
  for at = 1, #kept, 2 do
    reply[#reply + 1] = kept[at]
    reply[#reply + 1] = kept[at + 1]
    reply[#reply + 1] = call('HGET', prefix .. 'authors:' .. flow, kept[at]) or ''
  end
  replies[#replies + 1] = reply
end
return replies
