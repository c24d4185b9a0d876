-- The last terms of a name, the latest first.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  name
-- ARGV[2]  terms at most, from 1
-- Reply    terms as they are kept
local last = call('HGET', prefix .. 'terms', ARGV[1])
if not last then return {} end
local replies = { last }
if ARGV[2] ~= '1' then
  for _, term in ipairs(call('LRANGE', prefix .. 'terms:past:' .. ARGV[1], 0, ARGV[2] - 2)) do
    replies[#replies + 1] = term
  end
end
return replies
