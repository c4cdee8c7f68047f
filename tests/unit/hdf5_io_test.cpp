// The HDF5 room: types and bits, attributes, offsets and alignment, what a created file looks like before its holes are
// filled, and the child process that tries a file first. Hostile files are in trace_refuse_test.cpp.
#include "file/hdf5_io.hpp"

#include <gdnsim/error.hpp>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <new>

#include <doctest/doctest.h>

#include "file/memory_file.hpp"
#include "file/raw_file.hpp"
#include "file/trial.hpp"
#include "support/temp_dir.hpp"
#include "support/trace_data.hpp"

using namespace gdnsim;
using namespace gdnsim::test;
using h5::Dims;
using h5::File;
using h5::Group;
using h5::kAny;
using h5::Type;

namespace {

constexpr Type kTypes[] = {Type::i8, Type::i32, Type::i64, Type::u64, Type::f32, Type::f16, Type::bf16};

/// Creates a file, lets `fill` work on its root, closes it.
template <class Fill>
std::string create(const TempDir& dir, Fill fill, std::uint64_t align_from = 4096) {
  const std::string path = dir / "file.h5";
  std::filesystem::remove(path);
  File file = File::create(path, path, align_from);
  {
    Group root = file.root();
    fill(root);
  }
  file.close();
  return path;
}

}  // namespace

TEST_CASE("every type keeps its bits, and no type is taken for another") {
  const TempDir dir;
  Random random(7);
  std::map<Type, Bytes> bits;
  for (Type type : kTypes) bits[type] = random.bytes(24 * h5::size_of(type));
  for (const auto& [type, dtype] :
       {std::pair(Type::f32, DType::f32), {Type::f16, DType::f16}, {Type::bf16, DType::bf16}})
    plant_special(bits[type], dtype);
  const std::string path = create(dir, [&](Group& root) {
    for (Type type : kTypes) {
      h5::Dataset data = root.create_dataset(h5::name_of(type), type, {4, 2, 3});
      data.write_rows(2, 2, std::span(bits[type]).subspan(bits[type].size() / 2));
      data.write_rows(0, 2, std::span(bits[type]).first(bits[type].size() / 2));
      data.close();
    }
  });
  const File file = File::open(path);
  const Group root = file.root();
  for (Type type : kTypes) {
    h5::Dataset data = root.dataset(h5::name_of(type), type, {kAny, 2, 3});
    CHECK(data.rows() == 4);
    CHECK(data.row_bytes() == 6 * h5::size_of(type));
    Bytes all(data.bytes()), row(data.row_bytes());
    data.read_all(all);
    CHECK(all == bits[type]);
    data.read_rows(3, 1, row);
    CHECK(std::equal(row.begin(), row.end(), all.end() - static_cast<std::ptrdiff_t>(row.size())));
    for (Type other : kTypes)
      if (other != type) CHECK_THROWS_AS(root.dataset(h5::name_of(type), other, {kAny, 2, 3}), Error);
  }
}

TEST_CASE("shapes are checked axis by axis") {
  const TempDir dir;
  const std::string path = create(dir, [](Group& root) {
    root.create_vector<std::int32_t>("x", {2, 3}, {1, 2, 3, 4, 5, 6});
  });
  const File file = File::open(path);
  const Group root = file.root();
  CHECK(root.read_vector<std::int32_t>("x", {kAny, 3}) == std::vector<std::int32_t>{1, 2, 3, 4, 5, 6});
  const std::string start = path + ": /x: expected int32 ";
  CHECK_THROWS_WITH_AS(root.dataset("x", Type::i32, {2, 4}), (start + "[2, 4], found int32 [2, 3]").c_str(), Error);
  CHECK_THROWS_WITH_AS(root.dataset("x", Type::i32, {6}), (start + "[6], found int32 [2, 3]").c_str(), Error);
  CHECK_THROWS_WITH_AS(root.dataset("x", Type::i32, {2, 3, 1}), (start + "[2, 3, 1], found int32 [2, 3]").c_str(),
                       Error);
  CHECK_FALSE(root.find_dataset("y", Type::i32, {2}).has_value());
  CHECK_FALSE(root.find_group("y").has_value());
  CHECK_THROWS_WITH_AS(root.group("x"), (path + ": /x: expected a group, found another object").c_str(), Error);
}

TEST_CASE("products of dimensions do not wrap") {
  CHECK(h5::bytes_of(Type::f32, {1u << 20, 1u << 20, 1u << 20}) == std::uint64_t{1} << 62);
  CHECK_FALSE(h5::bytes_of(Type::u64, {1u << 20, 1u << 20, 1u << 20}).has_value());
  CHECK_FALSE(h5::bytes_of(Type::i8, {std::uint64_t{1} << 63, 4}).has_value());
  CHECK(h5::bytes_of(Type::u64, {0, std::uint64_t{1} << 63}) == 0);
  CHECK(h5::text_of({3, kAny}) == "[3, any]");
}

TEST_CASE("attributes") {
  const TempDir dir;
  const std::int64_t wide = std::numeric_limits<std::int64_t>::min();
  const std::string path = create(dir, [&](Group& root) {
    root.set_int("narrow", -5), root.set_int("wide", wide), root.set_float("float", -0.0f);
    root.set_string("text", "gr\xC3\xBC\xC3\x9F"), root.set_string("empty", "");
    for (int i = 0; i < 100; ++i) root.set_int("n" + std::to_string(i), i);
    CHECK_THROWS_AS(root.set_string("long", std::string(70000, 'x')), Error);
    CHECK_THROWS_AS(root.set_string("zero", std::string(3, '\0')), Error);
    root.create_text("recipe", std::string(200000, 'r')), root.create_text("nothing", "");
  });
  const File file = File::open(path);
  const Group root = file.root();
  CHECK(root.int_attribute("narrow") == -5);
  CHECK(root.int_attribute("wide") == wide);
  CHECK(std::signbit(root.float_attribute("float")));
  CHECK(root.string_attribute("text") == "gr\xC3\xBC\xC3\x9F");
  CHECK(root.string_attribute("empty").empty());
  CHECK(root.int_attribute("n99") == 99);
  CHECK(root.read_text("recipe") == std::string(200000, 'r'));
  CHECK(root.read_text("nothing").empty());
  CHECK(root.all_attributes().size() == 105);
  CHECK_THROWS_WITH_AS(root.int_attribute("text"), (path + ": / @text: expected an integer, found string").c_str(),
                       Error);
  CHECK_THROWS_WITH_AS(root.float_attribute("wide"), (path + ": / @wide: expected an f32, found int64").c_str(), Error);
  CHECK_THROWS_WITH_AS(root.string_attribute("float"), (path + ": / @float: expected a string, found f32").c_str(),
                       Error);
  CHECK_THROWS_WITH_AS(root.int_attribute("no"), (path + ": / @no: expected an integer, found nothing").c_str(), Error);
}

TEST_CASE("data written at a dataset's offset is what a reader finds; small datasets align where asked") {
  const TempDir dir;
  std::uint64_t small = 0, large = 0;
  const std::string path = create(
      dir,
      [&](Group& root) {
        h5::Dataset commit = root.create_dataset("commit", Type::u64, {1, 4});
        small = commit.file_offset();
        commit.close();
        h5::Dataset bulk = root.create_dataset("bulk", Type::bf16, {1 << 10, 1 << 20});  // 2 GiB of holes
        large = bulk.file_offset();
        bulk.close();
      },
      1);
  CHECK(small % 4096 == 0);
  CHECK(large % 4096 == 0);
  CHECK(std::filesystem::file_size(path) >= (std::uint64_t{2} << 30));
  const Bytes row = Random(1).bytes(2 << 20);
  {
    RawFile raw(path, RawFile::Mode::write, path);
    CHECK(raw.write_at(large + 1000 * row.size(), row) == 0);
    CHECK(raw.close() == 0);
  }
  const File file = File::open(path);
  h5::Dataset bulk = file.root().dataset("bulk", Type::bf16, {1 << 10, 1 << 20});
  Bytes found(row.size());
  bulk.read_rows(1000, 1, found);
  CHECK(found == row);
  bulk.read_rows(999, 1, found);
  CHECK(found == Bytes(row.size()));
}

TEST_CASE("a created file never replaces one, and its last change can be made without HDF5") {
  const TempDir dir;
  const std::string path = dir / "file.h5";
  write_file(path, "precious");
  CHECK_THROWS_WITH_AS(File::create(path, "shown.h5"), doctest::Contains("shown.h5: cannot be created"), Error);
  CHECK(file_bytes(path) == "precious");
  std::filesystem::remove(path);
  File file = File::create(path, path);
  file.root().set_int("complete", 0);
  const std::vector<Patch> patches = file.close_and_prepare([](Group& root) { root.overwrite_int("complete", 1); });
  CHECK(File::open(path).root().int_attribute("complete") == 0);
  std::size_t changed = 0;
  RawFile raw(path, RawFile::Mode::write, path);
  for (const Patch& patch : patches) {
    CHECK(raw.write_at(patch.offset, patch.bytes) == 0);
    changed += patch.bytes.size();
  }
  CHECK(changed <= 5);  // the value's low byte and the header's checksum
  CHECK(File::open(path).root().int_attribute("complete") == 1);
}

TEST_CASE("a truncated file is refused at every length") {
  const TempDir dir;
  const std::string path = create(dir, [](Group& root) { root.create_vector<std::int32_t>("x", {2}, {1, 2}); });
  const std::string whole = file_bytes(path);
  for (std::size_t length = 0; length < whole.size(); length += 1 + whole.size() / 200) {
    write_file(path, std::string_view(whole).substr(0, length));
    CHECK_THROWS_WITH_AS(File::open(path), doctest::Contains("expected a whole HDF5 file"), Error);
  }
}

TEST_CASE("a child process takes the faults of what it tries") {
  const TempDir dir;
  const std::string path = dir / "file";
  write_file(path, "x");
  CHECK_NOTHROW(try_in_child(path, [] {}));
  CHECK_THROWS_WITH_AS(try_in_child(path, [] { throw Error("one clear line"); }), "one clear line", Error);
  const auto damaged = doctest::Contains(": expected a whole HDF5 file, found one so damaged");
  CHECK_THROWS_WITH_AS(try_in_child(path, [] { std::abort(); }), damaged, Error);
  CHECK_THROWS_WITH_AS(try_in_child(path, [] { throw std::bad_alloc(); }), damaged, Error);
  CHECK_THROWS_WITH_AS(try_in_child(path,
                                    [] {
                                      for (volatile bool on = true; on;) continue;
                                    }),
                       damaged, Error);
  CHECK_THROWS_WITH_AS(try_in_child(path,
                                    [] {
                                      std::vector<Bytes> kept;
                                      for (int i = 0; i < 64; ++i) kept.emplace_back(std::size_t{64} << 20);
                                    }),
                       damaged, Error);
}
