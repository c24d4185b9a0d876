-- Records by their keys.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  kind
-- ARGV[2]  bytes of values at most, but for the last; the caller asks again for the rest
-- ARGV[3]  number of keys; then the keys
-- Reply    for each key in order, as far as the bytes go: version, times and value as they are kept,
--   both nil where there is no record
local heads, values = prefix .. 'record:' .. ARGV[1], prefix .. 'value:' .. ARGV[1]
local bytes, replies = tonumber(ARGV[2]), {}
for at = 4, 3 + ARGV[3] do
  if bytes <= 0 then break end
  local value = call('HGET', values, ARGV[at])
  replies[#replies + 1] = call('HGET', heads, ARGV[at])
  replies[#replies + 1] = value
  bytes = bytes - (value and #value or 0)
end
return replies
