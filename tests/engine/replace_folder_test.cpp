#include "engine/replace_folder.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "support/temp_dir.h"

namespace strata::engine {
namespace {

namespace fs = std::filesystem;

void make(const fs::path& folder, const std::string& text) {
  fs::create_directories(folder);
  std::ofstream(folder / "file") << text;
}

std::string text_of(const fs::path& folder) {
  std::ifstream in(folder / "file");
  return {std::istreambuf_iterator<char>(in), {}};
}

std::size_t entries(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(ReplaceFolder, TakesAnEmptyPlaceAndAFullOneAndLeavesNothingBehind) {
  const test::TempDir folder;
  const fs::path place = folder.path() / "checkpoint-3";
  make(folder.path() / "fresh", "one");
  replace_folder(folder.path() / "fresh", place);
  EXPECT_EQ(text_of(place), "one");
  make(folder.path() / "fresh", "two");
  make(folder.path() / ".old-checkpoint-3", "of a process that was killed");
  replace_folder(folder.path() / "fresh", place);
  EXPECT_EQ(text_of(place), "two");
  EXPECT_EQ(entries(folder.path()), 1U);
}

TEST(ReplaceFolder, LeavesWhatWasThereWhereTheFreshOneIsMissing) {
  const test::TempDir folder;
  const fs::path place = folder.path() / "model";
  make(place, "kept");
  EXPECT_THROW(replace_folder(folder.path() / "absent", place), fs::filesystem_error);
  EXPECT_EQ(text_of(place), "kept");
}

}  // namespace
}  // namespace strata::engine
