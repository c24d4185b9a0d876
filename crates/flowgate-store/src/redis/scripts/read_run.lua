-- A run with its open jobs.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  run id
-- Reply    nothing if it is not there; else record, started, updated, ended, whether its events are
--   removed; then for each job its step, what its field reads, and its lost leases
local run_key = prefix .. 'run:' .. ARGV[1]
local row = call('HMGET', run_key, 'record', 'started_at', 'version', 'ended_at', 'events_removed')
if not row[1] then return {} end
row[3] = updated_at(run_key, row[3])
for step, state in pairs(jobs_of(run_key)) do
  row[#row + 1], row[#row + 2] = step, state
  row[#row + 1] = sub(state, 2, 2) == '1' and call('HGET', run_key, 'lost:' .. step) or ''
end
return row
