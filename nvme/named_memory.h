// Memory that processes of one machine find by a name.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "nvme/file_descriptor.h"

namespace strata::nvme {

// Whoever comes first makes it, zeroed; the others map the same. Only processes of one user find each other, and only
// where they see each other's processes and share a network namespace (the name is an abstract socket's). Nothing has a
// place in a file system: the kernel forgets the name when the process that made it ends, however it ends, and the
// memory with the last that has it. Who comes after the name is gone makes new memory.
class NamedMemory {
 public:
  // Throws: IoError when it can be neither made nor found.
  NamedMemory(const std::string& name, std::size_t bytes);
  ~NamedMemory();
  NamedMemory(const NamedMemory&) = delete;
  NamedMemory& operator=(const NamedMemory&) = delete;

  void* data() const { return data_; }
  // Whether byte `index` is this object's alone from now on: until its end, also by kill -9, or give_up(). No process
  // can have it meanwhile, and no other object of this process.
  bool claim(std::size_t index);
  void give_up(std::size_t index);

 private:
  void make_or_find(const std::string& name, std::size_t bytes);
  bool lock(std::size_t index, short type);

  FileDescriptor name_;  // the listening socket, of the process that made the memory
  FileDescriptor memory_;
  void* data_ = nullptr;
  std::size_t bytes_;
};

}  // namespace strata::nvme
