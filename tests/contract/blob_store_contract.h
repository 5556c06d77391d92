// What every BlobStore promises. To try another one: a default-constructible struct with `BlobStore& store()`, and
// INSTANTIATE_TYPED_TEST_SUITE_P(Mine, BlobStoreContract, Mine);
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "core/blob_store.h"
#include "core/error.h"
#include "support/patterned_bytes.h"

namespace strata::test {

template <typename Fixture>
class BlobStoreContract : public testing::Test {
 protected:
  BlobStore& store() { return fixture_.store(); }

  // What the store holds in [offset, offset + bytes), read to an address `shift` bytes behind a page boundary.
  std::vector<std::byte> read_back(BlobId blob, std::uint64_t offset, std::size_t bytes, std::size_t shift = 0) {
    GuardedBytes memory(bytes, shift);
    store().read(blob, offset, memory.span(), IoUrgency::Demand).wait();
    EXPECT_TRUE(memory.guards_intact()) << "read wrote outside its destination";
    return {memory.span().begin(), memory.span().end()};
  }
  // Writes from an address `shift` bytes behind a page boundary.
  void write(BlobId blob, std::uint64_t offset, const std::vector<std::byte>& bytes, std::size_t shift = 0) {
    GuardedBytes memory(bytes.size(), shift);
    std::copy(bytes.begin(), bytes.end(), memory.span().begin());
    store().write(blob, offset, memory.span()).wait();
  }

 private:
  Fixture fixture_;
};
TYPED_TEST_SUITE_P(BlobStoreContract);

TYPED_TEST_P(BlobStoreContract, RoundTripsAnyLength) {
  for (const std::size_t bytes : {1u, 511u, 512u, 513u, 4095u, 4096u, 4097u, (1u << 20) + 1}) {
    for (const std::size_t shift : {0u, 1u}) {
      SCOPED_TRACE("bytes " + std::to_string(bytes) + " shift " + std::to_string(shift));
      const BlobId blob = this->store().create("blob", bytes);
      const std::vector<std::byte> sent = random_bytes(bytes, bytes);
      this->write(blob, 0, sent, shift);
      EXPECT_EQ(this->read_back(blob, 0, bytes, shift), sent);
    }
  }
}

TYPED_TEST_P(BlobStoreContract, EqualsAnArrayUnderRandomReadsAndWrites) {
  constexpr std::uint64_t kSeed = 42;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937_64 random(kSeed);
  std::vector<std::byte> model = random_bytes(2'100'001, kSeed);
  const BlobId blob = this->store().create("blob", model.size());
  this->write(blob, 0, model);
  for (int i = 0; i < 200; ++i) {
    const std::size_t limit = i % 5 == 0 ? model.size() : 9000;  // many that start or end within one block
    const std::size_t bytes = 1 + random() % limit;
    const std::size_t offset = random() % (model.size() - bytes + 1);
    const std::size_t shift = random() % 2 == 0 ? 0 : random() % 4096;
    SCOPED_TRACE("step " + std::to_string(i) + " offset " + std::to_string(offset) + " bytes " + std::to_string(bytes) +
                 " shift " + std::to_string(shift));
    const auto begin = model.begin() + static_cast<std::ptrdiff_t>(offset);
    const auto end = begin + static_cast<std::ptrdiff_t>(bytes);
    if (random() % 2 == 0) {
      const std::vector<std::byte> sent = random_bytes(bytes, random());
      std::copy(sent.begin(), sent.end(), begin);
      this->write(blob, offset, sent, shift);
    } else {
      ASSERT_EQ(this->read_back(blob, offset, bytes, shift), std::vector<std::byte>(begin, end));
    }
  }
  EXPECT_EQ(this->read_back(blob, 0, model.size()), model);
}

TYPED_TEST_P(BlobStoreContract, KeepsBlobsApart) {
  std::vector<BlobId> blobs;
  for (std::size_t i = 0; i < 20; ++i) blobs.push_back(this->store().create("blob", 1000 * i + 1));
  for (std::size_t i = 0; i < blobs.size(); ++i) this->write(blobs[i], 0, random_bytes(1000 * i + 1, i));
  for (std::size_t i = 0; i < blobs.size(); ++i) {
    EXPECT_EQ(this->read_back(blobs[i], 0, 1000 * i + 1), random_bytes(1000 * i + 1, i)) << i;
  }
}

TYPED_TEST_P(BlobStoreContract, KeepsDisjointRangesOfOneBlockApartWhenThreadsWriteAtOnce) {
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kPiece = 1000;  // four pieces to a block, none aligned
  constexpr std::size_t kPieces = 400;
  const std::vector<std::byte> sent = random_bytes(kPiece * kPieces, 9);
  const BlobId blob = this->store().create("blob", sent.size());
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::vector<Event> events;
      for (std::size_t i = t; i < kPieces; i += kThreads) {
        events.push_back(this->store().write(blob, i * kPiece, std::span(sent).subspan(i * kPiece, kPiece)));
      }
      when_all(events).wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(this->read_back(blob, 0, sent.size()), sent);
}

TYPED_TEST_P(BlobStoreContract, ServesThousandsOfMixedRequestsOfSeveralThreads) {
  constexpr std::size_t kThreads = 3;
  constexpr std::size_t kRequests = 850;  // a write and a read each: 5,100 in all
  std::vector<BlobId> blobs;
  for (std::size_t t = 0; t < kThreads; ++t) blobs.push_back(this->store().create("blob", 300'000));
  std::vector<std::size_t> mismatches(kThreads, 0);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      for (std::size_t i = 0; i < kRequests; ++i) {
        const std::size_t bytes = 1 + random() % (i % 10 == 0 ? 200'000 : 5'000);
        const std::uint64_t offset = random() % (300'000 - bytes);
        const std::vector<std::byte> sent = random_bytes(bytes, random());
        std::vector<std::byte> received(bytes);
        this->store().write(blobs[t], offset, sent).wait();
        const IoUrgency urgency = i % 2 == 0 ? IoUrgency::Demand : IoUrgency::Prefetch;
        this->store().read(blobs[t], offset, received, urgency).wait();
        mismatches[t] += received != sent ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(mismatches, std::vector<std::size_t>(kThreads, 0));
}

TYPED_TEST_P(BlobStoreContract, CompletesAnEmptyTransferAtOnce) {
  const BlobId blob = this->store().create("blob", 10);
  EXPECT_TRUE(this->store().read(blob, 10, {}, IoUrgency::Demand).ready());
  EXPECT_TRUE(this->store().write(blob, 10, {}).ready());
}

TYPED_TEST_P(BlobStoreContract, RefusesRangesOutsideTheBlob) {
  const BlobId blob = this->store().create("blob", 10);
  std::vector<std::byte> memory(11);
  EXPECT_THROW(this->store().read(blob, 0, memory, IoUrgency::Demand), ContractViolation);
  EXPECT_THROW(this->store().write(blob, 1, std::span(memory).first(10)), ContractViolation);
  EXPECT_THROW(this->store().write(blob, ~std::uint64_t{0}, std::span(memory).first(2)), ContractViolation);
  EXPECT_THROW(this->store().write({blob.index + 1}, 0, memory), ContractViolation);
}

TYPED_TEST_P(BlobStoreContract, CountsTheBytesThatWereAskedFor) {
  const BlobId blob = this->store().create("blob", 5000);
  this->write(blob, 0, random_bytes(5000, 1));
  this->write(blob, 10, random_bytes(7, 1));
  this->read_back(blob, 1, 4000);
  const BlobStoreStats stats = this->store().stats();
  EXPECT_EQ(stats.bytes_written, 5007u);
  EXPECT_EQ(stats.bytes_read, 4000u);
}

REGISTER_TYPED_TEST_SUITE_P(BlobStoreContract, RoundTripsAnyLength, EqualsAnArrayUnderRandomReadsAndWrites,
                            KeepsBlobsApart, KeepsDisjointRangesOfOneBlockApartWhenThreadsWriteAtOnce,
                            ServesThousandsOfMixedRequestsOfSeveralThreads, CompletesAnEmptyTransferAtOnce,
                            RefusesRangesOutsideTheBlob, CountsTheBytesThatWereAskedFor);

}  // namespace strata::test
