-- Records of a kind in a range of keys, in their order or the other way round.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  kind
-- ARGV[2]  where the range begins, and
-- ARGV[3]  where it ends, both as the command in ARGV[4] takes them
-- ARGV[4]  ZRANGEBYLEX or ZREVRANGEBYLEX
-- ARGV[5]  records at most
-- ARGV[6]  bytes of values at most, but for the last; the caller asks again for the rest
-- Reply    1 if the bytes were used up; then for each: key; version and times, value as they are kept
local heads, values = prefix .. 'record:' .. ARGV[1], prefix .. 'value:' .. ARGV[1]
local bytes, replies = tonumber(ARGV[6]), { 0 }
local keys = call(ARGV[4], prefix .. 'keys:' .. ARGV[1], ARGV[2], ARGV[3], 'LIMIT', 0, ARGV[5])
for _, key in ipairs(keys) do
  if bytes <= 0 then
    replies[1] = 1
    break
  end
  local value = call('HGET', values, key)
  replies[#replies + 1] = key
  replies[#replies + 1] = call('HGET', heads, key)
  replies[#replies + 1] = value
  bytes = bytes - #value
end
return replies
