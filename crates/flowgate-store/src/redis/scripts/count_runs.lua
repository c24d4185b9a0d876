-- How many runs each index holds in a span of time.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  earliest start
-- ARGV[2]  start before which to count
-- ARGV[3]  number of indexes; then their names
-- Reply    for each index the number of its runs
local replies = {}
for at = 4, 3 + ARGV[3] do
  replies[#replies + 1] = call('ZCOUNT', prefix .. ARGV[at], ARGV[1], ARGV[2])
end
return replies
