// Mutations that get past HDF5's front door: most of a small file is data, and its metadata carries checksums. So half of the
// mutations hit a metadata structure, with values that hurt (sizes, addresses of other structures), and the checksums of
// superblock, object headers and chunk indexes are made right again.
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>
#include <span>
#include <string_view>
#include <vector>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace {

using File = std::span<std::uint8_t>;
using Random = std::minstd_rand;

constexpr std::array<std::string_view, 18> kSignatures{"\x89HDF", "OHDR", "OCHK", "TREE", "SNOD", "HEAP",
                                                       "GCOL",    "BTHD", "BTLF", "BTIN", "FRHP", "FHDB",
                                                       "FHIB",    "FAHD", "FADB", "EAHD", "EAIB", "EADB"};
constexpr std::size_t kStructure = 600;  // bytes that are taken for a structure's own, if no other one begins before

std::uint64_t below(Random& random, std::uint64_t end) { return end == 0 ? 0 : random() % end; }

template <class Word>
Word load(File file, std::size_t at) {
  Word word = 0;
  if (at <= file.size() && sizeof word <= file.size() - at) std::memcpy(&word, &file[at], sizeof word);
  return word;
}

template <class Word>
void store(File file, std::size_t at, std::uint64_t value) {
  const Word word = static_cast<Word>(value);
  if (at <= file.size() && sizeof word <= file.size() - at) std::memcpy(&file[at], &word, sizeof word);
}

bool is_at(File file, std::size_t at, std::string_view signature) {
  return at <= file.size() && signature.size() <= file.size() - at &&
         std::memcmp(&file[at], signature.data(), signature.size()) == 0;
}

std::vector<std::size_t> structures(File file) {
  std::vector<std::size_t> found;
  for (std::size_t at = 0; at + 4 <= file.size(); ++at)
    for (std::string_view signature : kSignatures)
      if (file[at] == static_cast<std::uint8_t>(signature[0]) && is_at(file, at, signature)) found.push_back(at);
  return found;
}

/// Jenkins' lookup3 over bytes with seed 0, which HDF5 uses on its metadata.
std::uint32_t checksum(File bytes) {
  std::uint32_t a = 0xDEADBEEF + static_cast<std::uint32_t>(bytes.size()), b = a, c = a;
  const auto word = [&](std::size_t at) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < 4 && at + i < bytes.size(); ++i) value |= std::uint32_t{bytes[at + i]} << (8 * i);
    return value;
  };
  std::size_t at = 0;
  for (; bytes.size() - at > 12; at += 12) {
    a += word(at), b += word(at + 4), c += word(at + 8);
    a = (a - c) ^ std::rotl(c, 4), c += b;
    b = (b - a) ^ std::rotl(a, 6), a += c;
    c = (c - b) ^ std::rotl(b, 8), b += a;
    a = (a - c) ^ std::rotl(c, 16), c += b;
    b = (b - a) ^ std::rotl(a, 19), a += c;
    c = (c - b) ^ std::rotl(b, 4), b += a;
  }
  if (at == bytes.size()) return c;
  a += word(at), b += word(at + 4), c += word(at + 8);
  c = (c ^ b) - std::rotl(b, 14);
  a = (a ^ c) - std::rotl(c, 11);
  b = (b ^ a) - std::rotl(a, 25);
  c = (c ^ b) - std::rotl(b, 16);
  a = (a ^ c) - std::rotl(c, 4);
  b = (b ^ a) - std::rotl(a, 14);
  c = (c ^ b) - std::rotl(b, 24);
  return c;
}

/// Puts the checksum of `size` bytes behind them.
void seal(File file, std::size_t at, std::size_t size) {
  if (at > file.size() || size > file.size() - at || file.size() - at - size < 4) return;
  store<std::uint32_t>(file, at + size, checksum(file.subspan(at, size)));
}

/// An object header of version 2 with the blocks that continue it.
void seal_object(File file, std::size_t at) {
  if (load<std::uint8_t>(file, at + 4) != 2) return;
  const std::uint8_t flags = load<std::uint8_t>(file, at + 5);
  const std::size_t prefix = 6 + (flags & 0x20 ? 16 : 0) + (flags & 0x10 ? 4 : 0),
                    width = std::size_t{1} << (flags & 3);
  const std::uint64_t known = width == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << (8 * width)) - 1;
  const std::uint64_t size = load<std::uint64_t>(file, at + prefix) & known;
  if (size > file.size()) return;
  const std::size_t first = at + prefix + width, end = first + size, head = flags & 4 ? 6 : 4;
  for (std::size_t message = first; message + head <= std::min(end, file.size());
       message += head + load<std::uint16_t>(file, message + 1)) {
    if (load<std::uint8_t>(file, message) != 0x10) continue;
    const std::uint64_t block = load<std::uint64_t>(file, message + head),
                        bytes = load<std::uint64_t>(file, message + head + 8);
    if (bytes > 4 && bytes <= file.size() && is_at(file, block, "OCHK")) seal(file, block, bytes - 4);
  }
  seal(file, at, end - at);
}

/// Makes the checksums right again where the structure's size is known.
void seal_all(File file) {
  for (std::size_t at : structures(file)) {
    if (is_at(file, at, "\x89HDF") && load<std::uint8_t>(file, at + 8) >= 2) seal(file, at, 44);
    if (is_at(file, at, "OHDR")) seal_object(file, at);
    if (is_at(file, at, "FAHD")) {
      seal(file, at, 24);
      const std::uint64_t count = load<std::uint64_t>(file, at + 8), block = load<std::uint64_t>(file, at + 16);
      const std::uint64_t entry = load<std::uint8_t>(file, at + 6);
      if (count < file.size() && is_at(file, block, "FADB")) seal(file, block, 14 + count * entry);
    }
    if (is_at(file, at, "EAHD")) seal(file, at, 68);
    if (is_at(file, at, "BTHD")) seal(file, at, 34);
  }
}

/// A number that a careless reader stumbles over.
std::uint64_t nasty(File file, const std::vector<std::size_t>& places, std::size_t at, Random& random) {
  const std::uint64_t old = load<std::uint64_t>(file, at);
  switch (below(random, 8)) {
    case 0:
      return 0;
    case 1:
      return ~std::uint64_t{0};
    case 2:
      return file.size() + below(random, 3) - 1;
    case 3:
      return places.empty() ? 1 : places[below(random, places.size())];
    case 4:
      return std::uint64_t{1} << below(random, 64);
    case 5:
      return (std::uint64_t{1} << below(random, 64)) - 1;
    case 6:
      return old + below(random, 9) - 4;
    default:
      return at;  // itself
  }
}

void hit(File file, const std::vector<std::size_t>& places, std::size_t at, Random& random) {
  if (at >= file.size()) return;
  const std::uint64_t value = nasty(file, places, at, random);
  switch (below(random, 7)) {
    case 0:
    case 1:
      file[at] = static_cast<std::uint8_t>(file[at] ^ (1u << below(random, 8)));
      return;
    case 2:
      return store<std::uint8_t>(file, at, value);
    case 3:
      return store<std::uint16_t>(file, at, value);
    case 4:
      return store<std::uint32_t>(file, at, value);
    case 5:
      return store<std::uint64_t>(file, at, value);
    default: {  // a piece of another structure
      const std::size_t from = places.empty() ? below(random, file.size()) : places[below(random, places.size())];
      const std::size_t size = std::min({1 + below(random, 64), file.size() - at, file.size() - from});
      std::memmove(&file[at], &file[from], size);
    }
  }
}

void hit_structure(File file, Random& random) {
  const std::vector<std::size_t> places = structures(file);
  if (places.empty()) return;
  const std::size_t which = below(random, places.size()), at = places[which];
  const std::size_t end = which + 1 < places.size() ? places[which + 1] : file.size();
  for (std::uint64_t n = 1 + below(random, 4); n > 0; --n)
    hit(file, places, at + below(random, std::min(end - at, kStructure)), random);
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  Random random(seed | 1u);
  const std::uint64_t way = below(random, 16);
  if (size == 0 || way == 0) return LLVMFuzzerMutate(data, size, max_size);
  if (way == 1) return 1 + below(random, size);  // cut
  const File file(data, size);
  if (way < 12)
    hit_structure(file, random);
  else
    for (std::uint64_t n = 1 + below(random, 8); n > 0; --n) hit(file, {}, below(random, size), random);
  if (way != 2) seal_all(file);
  return size;
}

/// The head of one file and the tail of another from the same place on: structures of both at places that fit.
extern "C" std::size_t LLVMFuzzerCustomCrossOver(const std::uint8_t* first, std::size_t first_size,
                                                 const std::uint8_t* second, std::size_t second_size, std::uint8_t* out,
                                                 std::size_t max_size, unsigned seed) {
  Random random(seed | 1u);
  const std::size_t size = std::min(first_size, max_size);
  std::copy_n(first, size, out);
  const std::size_t at = below(random, size + 1), most = std::min(size, second_size);
  if (at < most) std::copy_n(second + at, std::min<std::size_t>(most - at, 1 + below(random, 4096)), out + at);
  seal_all(File(out, size));
  return size;
}
