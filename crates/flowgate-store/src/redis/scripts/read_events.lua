-- Rows of a run's log, from the one that holds the first event that is asked for.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  run id
-- ARGV[2]  number of that event
-- ARGV[3]  events that are enough
-- ARGV[4]  bytes that are enough
-- Reply    for each row an array: last event, its time and place, its text
local run_key = prefix .. 'run:' .. ARGV[1]
local first, events, bytes = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local run = call('HMGET', run_key, 'version', 'events_removed')
local replies = {}
if not run[1] or run[2] then return replies end
local version = tonumber(run[1])
while events > 0 and bytes > 0 do
  local last, at = row_of(run_key, first, version)
  if not last then break end
  local text = call('HGET', run_key, format('%d', last))
  replies[#replies + 1] = { last, at, text }
  events = events - (last - first + 1)
  bytes = bytes - #text
  first = last + 1
end
return replies
