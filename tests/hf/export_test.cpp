#include "hf/export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "hf/temporary_folder.h"

namespace strata::hf {
namespace {

namespace fs = std::filesystem;
using test::read_file;
using test::TemporaryFolder;
using test::write_file;

TEST(CopyFolderFiles, CopiesWhatUsersNeedByteForByte) {
  const TemporaryFolder source;
  const TemporaryFolder destination;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                           "generation_config.json", "chat_template.jinja", "tokenizer.model", "spiece.model",
                           "vocab.json", "merges.txt", "LICENSE", "README.md"}) {
    write_file(source / name, std::string("of ") + name + std::string(1, '\0') + "\r\n");
  }

  copy_folder_files(source.path(), destination.path());

  for (const auto& entry : fs::directory_iterator(source.path())) {
    const fs::path copy = destination.path() / entry.path().filename();
    ASSERT_TRUE(fs::exists(copy)) << copy;
    EXPECT_EQ(read_file(copy), read_file(entry.path()));
  }
}

TEST(CopyFolderFiles, LeavesWeightsAndTheConfigBehind) {
  const TemporaryFolder source;
  const TemporaryFolder destination;
  for (const char* name : {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "config.json",
                           "training_args.bin", "vocab.bin", "model.gguf", ".gitattributes"}) {
    write_file(source / name, "x");
  }
  fs::create_directory(source / "tokenizer");

  copy_folder_files(source.path(), destination.path());

  EXPECT_TRUE(fs::is_empty(destination.path()));
}

TEST(CopyFolderFiles, CopiesNamedChatTemplates) {
  const TemporaryFolder source;
  const TemporaryFolder destination;
  fs::create_directory(source / "additional_chat_templates");
  write_file(source.path() / "additional_chat_templates" / "tool_use.jinja", "{{ x }}");

  copy_folder_files(source.path(), destination.path());

  EXPECT_EQ(read_file(destination.path() / "additional_chat_templates" / "tool_use.jinja"), "{{ x }}");
}

TEST(CopyFolderFiles, FollowsTheLinksOfAHubCache) {
  const TemporaryFolder source;
  const TemporaryFolder destination;
  write_file(source / "0123abcd", "{}");
  fs::create_symlink("0123abcd", source / "tokenizer.json");

  copy_folder_files(source.path(), destination.path());

  EXPECT_FALSE(fs::is_symlink(fs::symlink_status(destination / "tokenizer.json")));
  EXPECT_EQ(read_file(destination / "tokenizer.json"), "{}");
}

std::string rewritten(std::string_view config, DType dtype) {
  const TemporaryFolder source;
  const TemporaryFolder destination;
  write_file(source / "config.json", config);
  write_config(source / "config.json", destination.path(), dtype);
  return read_file(destination / "config.json");
}

TEST(WriteConfig, KeepsUnknownKeysAndTheirOrder) {
  EXPECT_EQ(rewritten(R"({"z": {"b": 1, "a": [1e-05, null]}, "torch_dtype": "bfloat16", "a": "\u00e9"})", DType::F32),
            "{\n  \"z\": {\n    \"b\": 1,\n    \"a\": [\n      1e-05,\n      null\n    ]\n  },\n"
            "  \"torch_dtype\": \"float32\",\n  \"a\": \"\xC3\xA9\"\n}\n");
}

TEST(WriteConfig, StaysInTheDialectOfTheSource) {
  EXPECT_EQ(rewritten(R"({"dtype": "float32"})", DType::BF16), "{\n  \"dtype\": \"bfloat16\"\n}\n");
  EXPECT_EQ(rewritten(R"({"torch_dtype": "float32"})", DType::F16), "{\n  \"torch_dtype\": \"float16\"\n}\n");
  EXPECT_EQ(rewritten(R"({"dtype": "float32", "torch_dtype": "float32"})", DType::BF16),
            "{\n  \"dtype\": \"bfloat16\",\n  \"torch_dtype\": \"bfloat16\"\n}\n");
  EXPECT_EQ(rewritten(R"({"rope_parameters": null})", DType::BF16),
            "{\n  \"rope_parameters\": null,\n  \"dtype\": \"bfloat16\"\n}\n");
  EXPECT_EQ(rewritten(R"({"rope_theta": 500000.0})", DType::BF16),
            "{\n  \"rope_theta\": 500000.0,\n  \"torch_dtype\": \"bfloat16\"\n}\n");
}

TEST(WriteConfig, AMissingConfigIsNamed) {
  const TemporaryFolder source;

  EXPECT_THROW(write_config(source / "config.json", source.path(), DType::F32), DataError);
}

}  // namespace
}  // namespace strata::hf
