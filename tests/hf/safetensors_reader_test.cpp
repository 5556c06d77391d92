#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "core/error.h"
#include "hf/safetensors.h"
#include "hf/temporary_folder.h"

namespace strata::hf {
namespace {

namespace fs = std::filesystem;
using test::safetensors_bytes;
using test::TemporaryFolder;
using test::write_file;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Two tensors: a is F32 [1, 2] at 0, b is I16 [2] at 8.
constexpr std::string_view kTwoTensors = R"({"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
                                         R"("b":{"dtype":"I16","shape":[2],"data_offsets":[8,12]}})";
constexpr std::string_view kTwelveBytes = "abcdefghijkl";

std::string refusal_of_folder(const fs::path& folder) {
  try {
    TensorCatalog::open_folder(folder);
  } catch (const DataError& error) {
    return error.what();
  }
  return "accepted";
}

std::string refusal(std::string_view file_bytes) {
  const TemporaryFolder folder;
  write_file(folder / "model.safetensors", file_bytes);
  return refusal_of_folder(folder.path());
}

std::string refusal_of_header(std::string_view header, std::string_view data = kTwelveBytes) {
  return refusal(safetensors_bytes(header, data));
}

std::string read_all(const TensorCatalog& catalog, std::string_view name) {
  const TensorInfo* tensor = catalog.find(name);
  if (tensor == nullptr) return "absent";
  std::string bytes(tensor->bytes, '?');
  catalog.read(*tensor, 0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

void write_shards(const TemporaryFolder& folder) {
  write_file(folder / "one.safetensors",
             safetensors_bytes(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", "aaa"));
  write_file(folder / "two.safetensors",
             safetensors_bytes(R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "bb"));
  write_file(folder / "model.safetensors.index.json",
             R"({"metadata":{"total_size":5},"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
}

TEST(TensorCatalog, ReadsNamesTypesShapesAndBytes) {
  const TemporaryFolder folder;
  write_file(folder / "model.safetensors", safetensors_bytes(kTwoTensors, kTwelveBytes));

  const TensorCatalog catalog = TensorCatalog::open_folder(folder.path());

  ASSERT_NE(catalog.find("a"), nullptr);
  EXPECT_EQ(catalog.find("a")->dtype, DType::F32);
  EXPECT_THAT(catalog.find("a")->shape, ElementsAre(1, 2));
  EXPECT_EQ(catalog.find("a")->numel(), 2u);
  EXPECT_EQ(read_all(catalog, "a"), "abcdefgh");
  EXPECT_EQ(read_all(catalog, "b"), "ijkl");
  EXPECT_EQ(catalog.find("c"), nullptr);
}

TEST(TensorCatalog, ReadsARangeInsideATensor) {
  const TemporaryFolder folder;
  write_file(folder / "x.safetensors", safetensors_bytes(kTwoTensors, kTwelveBytes));
  const TensorCatalog catalog = TensorCatalog::open_file(folder / "x.safetensors");
  std::string bytes(2, '?');

  catalog.read(*catalog.find("b"), 1, std::as_writable_bytes(std::span(bytes)));

  EXPECT_EQ(bytes, "jk");
}

TEST(TensorCatalog, RangesOutsideATensorAreTheCallersMistake) {
  const TemporaryFolder folder;
  write_file(folder / "x.safetensors", safetensors_bytes(kTwoTensors, kTwelveBytes));
  const TensorCatalog catalog = TensorCatalog::open_file(folder / "x.safetensors");
  std::array<std::byte, 4> bytes{};

  EXPECT_THROW(catalog.read(*catalog.find("a"), 5, bytes), ContractViolation);
  EXPECT_THROW(catalog.read(*catalog.find("b"), UINT64_MAX, bytes), ContractViolation);
}

TEST(TensorCatalog, AcceptsAHeaderPaddedWithSpaces) {
  EXPECT_EQ(refusal_of_header(std::string(kTwoTensors) + "     "), "accepted");
}

TEST(TensorCatalog, AcceptsZeroElementTensorsAndScalars) {
  const TemporaryFolder folder;
  write_file(folder / "model.safetensors",
             safetensors_bytes(R"({"z0":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)"
                               R"("z1":{"dtype":"F32","shape":[0,64],"data_offsets":[0,0]},)"
                               R"("s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                               R"("z2":{"dtype":"F32","shape":[64,0],"data_offsets":[4,4]}})",
                               "1234"));

  const TensorCatalog catalog = TensorCatalog::open_folder(folder.path());

  EXPECT_EQ(catalog.tensors().size(), 4u);
  EXPECT_EQ(catalog.find("s")->numel(), 1u);
  EXPECT_EQ(read_all(catalog, "s"), "1234");
  EXPECT_EQ(read_all(catalog, "z2"), "");
}

TEST(TensorCatalog, AcceptsAnyMetadata) {
  const TemporaryFolder folder;
  write_file(folder / "pt.safetensors", safetensors_bytes(R"({"__metadata__":{"format":"pt","k":"v"}})", ""));
  write_file(folder / "empty.safetensors", safetensors_bytes(R"({"__metadata__":{}})", ""));
  write_file(folder / "none.safetensors", safetensors_bytes("{}", ""));

  EXPECT_EQ(TensorCatalog::open_file(folder / "pt.safetensors").metadata().at("k"), "v");
  EXPECT_THAT(TensorCatalog::open_file(folder / "empty.safetensors").metadata(), IsEmpty());
  EXPECT_THAT(TensorCatalog::open_file(folder / "none.safetensors").metadata(), IsEmpty());
  EXPECT_THAT(refusal_of_header(R"({"__metadata__":{"format":1}})", ""), HasSubstr("\"format\" is not a string"));
}

TEST(TensorCatalog, AbsurdHeaderLengthsAreRefusedWithTheirValue) {
  const std::string header(kTwoTensors);
  const auto with_length = [&](std::uint64_t length) {
    return refusal(safetensors_bytes(header, kTwelveBytes, length));
  };
  const std::uint64_t file_bytes = 8 + header.size() + kTwelveBytes.size();

  EXPECT_THAT(with_length(std::uint64_t{1} << 40), HasSubstr("says 1099511627776 bytes, at most 100000000"));
  EXPECT_THAT(with_length(UINT64_MAX), HasSubstr("at most 100000000"));
  EXPECT_THAT(with_length(0), HasSubstr("says 0 bytes"));
  EXPECT_THAT(with_length(7), HasSubstr("not valid JSON"));
  EXPECT_THAT(with_length(file_bytes + 1), AllOf(HasSubstr("says " + std::to_string(file_bytes + 1) + " bytes"),
                                                 HasSubstr("has " + std::to_string(file_bytes) + " bytes in all")));
}

TEST(TensorCatalog, AHeaderAboveTheBoundIsRefusedEvenWhenItIsThere) {
  const TemporaryFolder folder;
  write_file(folder / "model.safetensors", safetensors_bytes("{}", "", 100'000'001));
  fs::resize_file(folder / "model.safetensors", 100'000'009);

  EXPECT_THAT(refusal_of_folder(folder.path()), HasSubstr("at most 100000000"));
}

TEST(TensorCatalog, ATruncatedFileIsRefusedWithExpectedAndActualBytes) {
  const std::string whole = safetensors_bytes(kTwoTensors, kTwelveBytes);
  const std::string expected = std::to_string(whole.size()) + " bytes expected";

  EXPECT_THAT(
      refusal(whole.substr(0, whole.size() - 1)),
      AllOf(HasSubstr("truncated"), HasSubstr(expected), HasSubstr(std::to_string(whole.size() - 1) + " bytes there")));
  EXPECT_THAT(refusal(whole.substr(0, whole.size() / 2)), HasSubstr("truncated"));
  EXPECT_THAT(refusal(whole.substr(0, 5)), HasSubstr("truncated, only 5 bytes"));
  EXPECT_THAT(refusal(whole + "x"), HasSubstr("1 byte after the last tensor"));
}

TEST(TensorCatalog, WhatIsNotWeightsAtAllIsNamed) {
  EXPECT_THAT(refusal("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123456789\n"),
              AllOf(HasSubstr("git-lfs pointer"), HasSubstr("git lfs pull")));
  EXPECT_THAT(refusal("\n<!DOCTYPE html><html><body>Sign in</body></html>"), HasSubstr("HTML page"));
  EXPECT_THAT(refusal(""), HasSubstr("empty file"));
}

TEST(TensorCatalog, DuplicateKeysInAHeaderAreRefused) {
  EXPECT_THAT(refusal_of_header(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                                "xy"),
              HasSubstr("duplicate key \"a\""));
}

TEST(TensorCatalog, OverlapsAndHolesAreRefused) {
  EXPECT_THAT(refusal_of_header(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
                                R"("b":{"dtype":"U8","shape":[8],"data_offsets":[4,12]}})"),
              AllOf(HasSubstr("\"b\""), HasSubstr("overlaps that of \"a\"")));
  EXPECT_THAT(refusal_of_header(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
                                R"("b":{"dtype":"U8","shape":[2],"data_offsets":[10,12]}})"),
              HasSubstr("a hole of 2 bytes"));
  EXPECT_THAT(refusal_of_header(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[4,12]}})"),
              HasSubstr("a hole of 4 bytes"));
}

TEST(TensorCatalog, OffsetsThatDoNotMatchShapeAndTypeAreRefused) {
  EXPECT_THAT(refusal_of_header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,12]}})"),
              HasSubstr("data_offsets span 12 bytes, shape and dtype need 8 bytes"));
  EXPECT_THAT(refusal_of_header(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[8,4]}})"), HasSubstr("begin <= end"));
  EXPECT_THAT(refusal_of_header(R"({"a":{"dtype":"U8","shape":[12],"data_offsets":[0,6,12]}})"),
              HasSubstr("begin <= end"));
}

TEST(TensorCatalog, AShapeWhoseProductWrapsIsRefused) {
  // 2^32 * 2^32 elements: the product is 0 in 64 bits, as is the span.
  EXPECT_THAT(refusal_of_header(R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", ""),
              HasSubstr("more bytes than 64 bits can count"));
}

TEST(TensorCatalog, EntriesOfTheWrongKindAreRefused) {
  EXPECT_THAT(refusal_of_header(R"({"a":{"dtype":"F8_E4M3","shape":[12],"data_offsets":[0,12]}})"),
              HasSubstr("dtype F8_E4M3 is not supported"));
  EXPECT_THAT(refusal_of_header(R"({"a":{"dtype":"U8","shape":[-12],"data_offsets":[0,12]}})"), HasSubstr("shape"));
  EXPECT_THAT(refusal_of_header(R"({"a":{"dtype":"U8","shape":[12.0],"data_offsets":[0,12]}})"), HasSubstr("shape"));
  EXPECT_THAT(refusal_of_header(R"({"a":{"dtype":"U8","shape":12,"data_offsets":[0,12]}})"), HasSubstr("shape"));
  EXPECT_THAT(refusal_of_header(R"({"a":{"dtype":"U8","shape":[12]}})"), HasSubstr("data_offsets"));
  EXPECT_THAT(refusal_of_header(R"({"a":{"shape":[12],"data_offsets":[0,12]}})"), HasSubstr("no dtype"));
  EXPECT_THAT(refusal_of_header(R"({"a":3})"), HasSubstr("expected an object"));
  EXPECT_THAT(refusal_of_header("[1,2]"), HasSubstr("not a JSON object"));
}

TEST(TensorCatalog, ReadsShardsThroughTheIndex) {
  const TemporaryFolder folder;
  write_shards(folder);

  const TensorCatalog catalog = TensorCatalog::open_folder(folder.path());

  EXPECT_EQ(read_all(catalog, "a"), "aaa");
  EXPECT_EQ(read_all(catalog, "b"), "bb");
}

TEST(TensorCatalog, AllAbsentShardsAreListed) {
  const TemporaryFolder folder;
  write_shards(folder);
  fs::remove(folder / "one.safetensors");
  fs::remove(folder / "two.safetensors");

  EXPECT_THAT(refusal_of_folder(folder.path()), AllOf(HasSubstr("one.safetensors"), HasSubstr("two.safetensors")));
}

TEST(TensorCatalog, ADanglingLinkOrAFolderIsNoShard) {
  const TemporaryFolder folder;
  write_shards(folder);
  fs::remove(folder / "one.safetensors");
  fs::remove(folder / "two.safetensors");
  fs::create_symlink("blobs/0123", folder / "one.safetensors");
  fs::create_directory(folder / "two.safetensors");

  EXPECT_THAT(refusal_of_folder(folder.path()),
              AllOf(HasSubstr("one.safetensors (a dangling link)"), HasSubstr("two.safetensors (a folder)")));
}

TEST(TensorCatalog, ADanglingSingleFileIsNamedRatherThanLookedPast) {
  const TemporaryFolder folder;
  fs::create_symlink("blobs/0123", folder / "model.safetensors");

  EXPECT_THAT(refusal_of_folder(folder.path()), HasSubstr("the link points to a file that does not exist"));
}

TEST(TensorCatalog, ALinkToAShardIsFollowed) {
  const TemporaryFolder folder;
  write_shards(folder);
  fs::rename(folder / "one.safetensors", folder / "blob");
  fs::create_symlink("blob", folder / "one.safetensors");

  EXPECT_EQ(read_all(TensorCatalog::open_folder(folder.path()), "a"), "aaa");
}

TEST(TensorCatalog, ATensorInTwoShardsIsRefused) {
  const TemporaryFolder folder;
  write_shards(folder);
  fs::copy_file(folder / "one.safetensors", folder / "two.safetensors", fs::copy_options::overwrite_existing);

  EXPECT_THAT(refusal_of_folder(folder.path()),
              AllOf(HasSubstr("duplicate tensor \"a\""), HasSubstr("one.safetensors")));
}

TEST(TensorCatalog, ATensorThatTheIndexPutsElsewhereIsRefused) {
  const TemporaryFolder folder;
  write_shards(folder);
  write_file(folder / "model.safetensors.index.json",
             R"({"weight_map":{"a":"two.safetensors","b":"one.safetensors"}})");

  EXPECT_THAT(refusal_of_folder(folder.path()), HasSubstr("\"a\" is not in two.safetensors"));
}

TEST(TensorCatalog, AnIndexCannotLeadOutOfTheFolder) {
  const TemporaryFolder folder;
  write_shards(folder);
  write_file(folder / "model.safetensors.index.json", R"({"weight_map":{"a":"../secret.safetensors"}})");

  EXPECT_THAT(refusal_of_folder(folder.path()), HasSubstr("not a file name inside the folder"));
}

TEST(TensorCatalog, PickledWeightsAreRefusedWithTheRemedy) {
  const TemporaryFolder folder;
  write_file(folder / "pytorch_model.bin", "PK");

  EXPECT_THAT(refusal_of_folder(folder.path()), AllOf(HasSubstr("pytorch_model.bin"), HasSubstr("save_pretrained")));
}

TEST(TensorCatalog, AnEmptyFolderIsRefusedWithWhatWasLookedFor) {
  const TemporaryFolder folder;

  EXPECT_THAT(refusal_of_folder(folder.path()), HasSubstr("neither model.safetensors nor"));
  EXPECT_THAT(refusal_of_folder(folder / "absent"), HasSubstr("no such folder"));
}

TEST(TensorCatalog, AFileCutAfterOpeningIsReportedAtTheRead) {
  const TemporaryFolder folder;
  write_file(folder / "model.safetensors", safetensors_bytes(kTwoTensors, kTwelveBytes));
  const TensorCatalog catalog = TensorCatalog::open_folder(folder.path());
  fs::resize_file(folder / "model.safetensors", 8 + kTwoTensors.size() + 10);

  EXPECT_EQ(read_all(catalog, "a"), "abcdefgh");
  EXPECT_THROW(read_all(catalog, "b"), DataError);
}

}  // namespace
}  // namespace strata::hf
