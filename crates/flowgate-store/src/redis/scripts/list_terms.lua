-- The last term of each name in a range of names, in their order.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  where the range begins, and
-- ARGV[2]  where it ends, both as ZRANGEBYLEX takes them
-- ARGV[3]  names at most
-- Reply    for each: name, term as it is kept
local names = call('ZRANGEBYLEX', prefix .. 'terms:names', ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])
local replies = {}
for _, name in ipairs(names) do
  replies[#replies + 1], replies[#replies + 2] = name, call('HGET', prefix .. 'terms', name)
end
return replies
