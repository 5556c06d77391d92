#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>

#include "core/error.h"
#include "hf/safetensors.h"
#include "hf/temporary_folder.h"

namespace strata::hf {
namespace {

namespace fs = std::filesystem;
using test::read_file;
using test::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  return names;
}

std::uint64_t bytes_of_tensor(const TensorToWrite& tensor) {
  std::uint64_t bytes = bytes_of(tensor.dtype);
  for (const std::int64_t dimension : tensor.shape) bytes *= static_cast<std::uint64_t>(dimension);
  return bytes;
}

// Contents that tell tensor and place apart.
std::vector<std::string> contents_of(std::span<const TensorToWrite> tensors, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::string> contents;
  for (const TensorToWrite& tensor : tensors) {
    std::string& bytes = contents.emplace_back(bytes_of_tensor(tensor), '\0');
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(random() & 0xff); });
  }
  return contents;
}

TensorProducer producer_of(const std::vector<std::string>& contents) {
  return [&contents](std::size_t tensor, std::uint64_t offset_bytes, std::span<std::byte> destination) {
    const auto source = std::as_bytes(std::span(contents.at(tensor))).subspan(offset_bytes, destination.size());
    std::copy(source.begin(), source.end(), destination.begin());
  };
}

void expect_round_trip(const fs::path& folder, std::span<const TensorToWrite> tensors,
                       const std::vector<std::string>& contents) {
  const TensorCatalog catalog = TensorCatalog::open_folder(folder);
  ASSERT_EQ(catalog.tensors().size(), tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo* tensor = catalog.find(tensors[i].name);
    ASSERT_NE(tensor, nullptr) << tensors[i].name;
    EXPECT_EQ(tensor->dtype, tensors[i].dtype);
    EXPECT_EQ(tensor->shape, tensors[i].shape);
    std::string bytes(tensor->bytes, '?');
    catalog.read(*tensor, 0, std::as_writable_bytes(std::span(bytes)));
    EXPECT_EQ(bytes, contents[i]) << tensors[i].name;
  }
}

const std::vector<TensorToWrite> kTensors = {{"w", DType::F32, {3, 5}},
                                             {"empty", DType::F32, {0, 64}},
                                             {"scalar", DType::F32, {}},
                                             {"b", DType::BF16, {33}},
                                             {"quoted \"name\"", DType::U8, {7}}};

TEST(SafetensorsWriter, WhatIsWrittenIsReadBack) {
  constexpr unsigned kSeed = 1;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  const std::vector<std::string> contents = contents_of(kTensors, kSeed);
  for (const std::size_t buffer_bytes :
       {std::size_t{1}, std::size_t{7}, std::size_t{64}, std::size_t{100}, std::size_t{4096}}) {
    SCOPED_TRACE("buffer of " + std::to_string(buffer_bytes));
    const TemporaryFolder folder;
    std::vector<std::byte> buffer(buffer_bytes);

    write_safetensors(folder.path(), kTensors, producer_of(contents), buffer);

    EXPECT_THAT(names_in(folder.path()), ElementsAre("model.safetensors"));
    expect_round_trip(folder.path(), kTensors, contents);
  }
}

TEST(SafetensorsWriter, TheHeaderIsPaddedSoThatDataIsAligned) {
  const TemporaryFolder folder;
  std::vector<std::byte> buffer(64);
  for (std::size_t length = 1; length <= 8; ++length) {
    const std::vector<TensorToWrite> tensors = {{std::string(length, 'n'), DType::F32, {1}}};
    const std::vector<std::string> contents = {"1234"};

    write_safetensors(folder.path(), tensors, producer_of(contents), buffer);

    EXPECT_EQ(TensorCatalog::open_folder(folder.path()).tensors().begin()->second.offset_bytes % 8, 0u);
  }
}

TEST(SafetensorsWriter, SaysFormatPt) {
  const TemporaryFolder folder;
  std::vector<std::byte> buffer(64);

  write_safetensors(folder.path(), {}, nullptr, buffer);

  EXPECT_EQ(TensorCatalog::open_folder(folder.path()).metadata().at("format"), "pt");
}

TEST(SafetensorsWriter, SplitsIntoShardsWithAnIndex) {
  const TemporaryFolder folder;
  std::vector<std::byte> buffer(64);
  const std::vector<TensorToWrite> tensors = {
      {"a", DType::U8, {60}}, {"b", DType::U8, {40}}, {"c", DType::U8, {150}}, {"d", DType::U8, {1}}};
  const std::vector<std::string> contents = contents_of(tensors, 2);

  write_safetensors(folder.path(), tensors, producer_of(contents), buffer, {.stem = "model", .max_shard_bytes = 100});

  EXPECT_THAT(names_in(folder.path()),
              UnorderedElementsAre("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                   "model-00003-of-00003.safetensors", "model.safetensors.index.json"));
  const auto index = nlohmann::json::parse(read_file(folder / "model.safetensors.index.json"));
  EXPECT_EQ(index.at("metadata").at("total_size"), 251);
  EXPECT_EQ(index.at("weight_map").at("b"), "model-00001-of-00003.safetensors");
  EXPECT_EQ(index.at("weight_map").at("c"), "model-00002-of-00003.safetensors");
  expect_round_trip(folder.path(), tensors, contents);
}

TEST(SafetensorsWriter, AStemNamesTheFilesAndTheReaderFindsThem) {
  const TemporaryFolder folder;
  std::vector<std::byte> buffer(64);
  const std::vector<TensorToWrite> tensors = {{"a", DType::U8, {60}}, {"b", DType::U8, {40}}};
  const std::vector<std::string> contents = contents_of(tensors, 3);

  write_safetensors(folder.path(), tensors, producer_of(contents), buffer,
                    {.stem = "optimizer", .max_shard_bytes = 60});

  EXPECT_EQ(TensorCatalog::open_folder(folder.path(), "optimizer").tensors().size(), 2u);
}

TEST(SafetensorsWriter, ProducesInOrderAndNeverSplitsAnElement) {
  const TemporaryFolder folder;
  std::vector<std::byte> buffer(70);
  const std::vector<TensorToWrite> tensors = {{"a", DType::F64, {20}}, {"b", DType::F32, {3}}};
  std::vector<std::array<std::uint64_t, 3>> calls;

  write_safetensors(
      folder.path(), tensors,
      [&](std::size_t tensor, std::uint64_t offset, std::span<std::byte> destination) {
        std::fill(destination.begin(), destination.end(), std::byte{1});
        calls.push_back({tensor, offset, destination.size()});
      },
      buffer);

  EXPECT_THAT(calls, ElementsAre(ElementsAre(0, 0, 64), ElementsAre(0, 64, 64), ElementsAre(0, 128, 32),
                                 ElementsAre(1, 0, 12)));
}

TEST(SafetensorsWriter, ATooSmallFileSystemIsFoundBeforeAnythingIsWritten) {
  const TemporaryFolder folder;
  std::vector<std::byte> buffer(64);
  const std::vector<TensorToWrite> tensors = {{"huge", DType::F64, {std::int64_t{1} << 56}}};

  try {
    write_safetensors(
        folder.path(), tensors, [](auto...) { FAIL() << "was asked for bytes"; }, buffer);
    FAIL() << "accepted";
  } catch (const IoError& error) {
    EXPECT_EQ(error.failure().errno_value, ENOSPC);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("free"));
  }
  EXPECT_THAT(names_in(folder.path()), ElementsAre());
}

// Lets files of this process grow to `bytes` only: the first write beyond is short, the next fails with EFBIG.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    if (::getrlimit(RLIMIT_FSIZE, &before_) != 0) throw std::runtime_error("getrlimit");
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    const struct rlimit limit { .rlim_cur = bytes, .rlim_max = before_.rlim_max };
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) throw std::runtime_error("setrlimit");
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before_), 0);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  struct rlimit before_ {};
  void (*handler_)(int) = SIG_DFL;
};

TEST(SafetensorsWriter, AShortWriteIsResumedAndItsFailureReported) {
  const TemporaryFolder folder;
  std::vector<std::byte> buffer(3000);
  const std::vector<TensorToWrite> tensors = {{"a", DType::U8, {10000}}};
  const std::vector<std::string> contents = contents_of(tensors, 4);

  try {
    const FileSizeLimit limit(4096);
    write_safetensors(folder.path(), tensors, producer_of(contents), buffer);
    FAIL() << "accepted";
  } catch (const IoError& error) {
    EXPECT_EQ(error.failure().errno_value, EFBIG);
    EXPECT_EQ(error.failure().offset_bytes, 4096u);
    EXPECT_EQ(error.failure().path, (folder / "model.safetensors").string());
  }
}

// Two writers, as two processes have them, take turns in the ranges of every tensor.
TEST(SafetensorsWriter, FilesFilledByTwoAreThoseOfOne) {
  const std::vector<TensorToWrite> tensors = {{"a", DType::U8, {60}},
                                              {"empty", DType::U8, {0}},
                                              {"b", DType::U8, {40}},
                                              {"c", DType::U8, {150}},
                                              {"d", DType::U8, {1}}};
  const std::vector<std::string> contents = contents_of(tensors, 7);
  const WriteOptions options{.stem = "model", .max_shard_bytes = 100};
  const TemporaryFolder one;
  std::vector<std::byte> buffer(64);
  write_safetensors(one.path(), tensors, producer_of(contents), buffer, options);
  const TemporaryFolder two;
  const SafetensorsPlan plan(tensors, options);

  plan.create_files(two.path());
  for (const std::size_t turn : {1, 0}) {  // the later ranges first
    SafetensorsWriter writer(plan, two.path());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto bytes = std::as_bytes(std::span(contents[i]));
      for (std::size_t at = turn * 10; at < bytes.size(); at += 20) {
        writer.write(i, at, bytes.subspan(at, std::min<std::size_t>(10, bytes.size() - at)));
      }
    }
    writer.finish();
  }

  EXPECT_THAT(names_in(two.path()), ::testing::UnorderedElementsAreArray(names_in(one.path())));
  for (const std::string& name : names_in(one.path())) EXPECT_EQ(read_file(two / name), read_file(one / name)) << name;
}

TEST(SafetensorsWriter, AFolderThatThisProcessCannotSeeIsNamed) {
  const TemporaryFolder folder;
  const std::vector<TensorToWrite> tensors = {{"a", DType::U8, {60}}};
  const SafetensorsPlan plan(tensors);
  const std::string bytes(60, 'x');

  SafetensorsWriter writer(plan, folder / "elsewhere");
  try {
    writer.write(0, 0, std::as_bytes(std::span(bytes)));
    FAIL() << "accepted";
  } catch (const IoError& error) {
    EXPECT_EQ(error.failure().errno_value, ENOENT);
    EXPECT_EQ(error.failure().path, (folder / "elsewhere" / "model.safetensors").string());
  }
}

TEST(SafetensorsWriter, RangesOutsideATensorAreTheCallersMistake) {
  const TemporaryFolder folder;
  const std::vector<TensorToWrite> tensors = {{"a", DType::U8, {4}}, {"b", DType::U8, {4}}};
  const SafetensorsPlan plan(tensors, {.max_shard_bytes = 4});
  plan.create_files(folder.path());
  const std::array<std::byte, 4> four{};
  SafetensorsWriter writer(plan, folder.path());

  EXPECT_THROW(writer.write(0, 1, four), ContractViolation);
  EXPECT_THROW(writer.write(2, 0, four), ContractViolation);
  writer.write(1, 0, four);
  EXPECT_THROW(writer.write(0, 0, four), ContractViolation);
}

TEST(SafetensorsWriter, EqualNamesAreTheCallersMistake) {
  const TemporaryFolder folder;
  std::vector<std::byte> buffer(64);
  const std::vector<TensorToWrite> tensors = {{"a", DType::U8, {0}}, {"a", DType::U8, {0}}};

  EXPECT_THROW(write_safetensors(folder.path(), tensors, nullptr, buffer), ContractViolation);
}

}  // namespace
}  // namespace strata::hf
