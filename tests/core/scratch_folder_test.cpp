#include "core/scratch_folder.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "support/temp_dir.h"

namespace strata {
namespace {

TEST(ScratchFolder, IsGoneAtTheEndWithWhatIsInIt) {
  const test::TempDir parent;
  std::filesystem::path path;
  {
    const ScratchFolder one(parent.path(), "stem");
    const ScratchFolder two(parent.path(), "stem");
    EXPECT_NE(one.path(), two.path());
    EXPECT_TRUE(one.path().filename().string().starts_with("stem-"));
    path = one.path();
    std::filesystem::create_directories(path / "inner");
    std::ofstream(path / "inner" / "file") << "x";
    ASSERT_TRUE(std::filesystem::exists(path / "inner" / "file"));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE(std::filesystem::is_empty(parent.path()));
}

TEST(ScratchFolder, AParentThatIsMissingIsAnErrorThatNamesIt) {
  try {
    const ScratchFolder folder("/no/such/folder", "stem");
    FAIL() << "made";
  } catch (const IoError& error) {
    EXPECT_EQ(error.failure().path, "/no/such/folder");
  }
}

}  // namespace
}  // namespace strata
