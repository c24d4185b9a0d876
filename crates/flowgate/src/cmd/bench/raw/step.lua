-- Ends a batch of steps and takes the next ones. One command for all of the batch wherever Redis
-- has such a one.
--
-- KEYS[1]  list of due jobs
-- KEYS[2]  leased jobs by when their lease ends
-- ARGV[1]  when the new leases end
-- ARGV[2]  number of jobs to take
-- then for each step that has ended: its job, the key of its run, the name of its output, the
-- output, the record of the run, the job that follows
-- Reply    the jobs that were taken
local ended, followers, leases = {}, {}, {}
for at = 3, #ARGV, 6 do
  ended[#ended + 1] = ARGV[at]
end
if #ended > 0 then
  local held = redis.call('ZMSCORE', KEYS[2], unpack(ended))
  for at = 1, #ended do
    if held[at] then
      local from = 6 * at - 3
      redis.call('HSET', ARGV[from + 1], ARGV[from + 2], ARGV[from + 3], 'record', ARGV[from + 4])
      followers[#followers + 1] = ARGV[from + 5]
    end
  end
  redis.call('ZREM', KEYS[2], unpack(ended))
  redis.call('RPUSH', KEYS[1], unpack(followers))
end
local taken = redis.call('LPOP', KEYS[1], ARGV[2])
if not taken or #taken == 0 then
  return {}
end
for at = 1, #taken do
  leases[2 * at - 1] = ARGV[1]
  leases[2 * at] = taken[at]
end
redis.call('ZADD', KEYS[2], unpack(leases))
return taken
