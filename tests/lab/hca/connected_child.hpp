// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "tests/lab/hca/verbs_node.hpp"
#include "tests/support/child.hpp"

#include <functional>
#include <sys/mman.h>

namespace testing_support {

template <typename T>
class shared_memory {
public:
    explicit shared_memory(std::size_t count)
        : bytes_(count * sizeof(T)), at_(static_cast<T*>(::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                                                                MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
    ~shared_memory() { ::munmap(at_, bytes_); }
    shared_memory(const shared_memory&) = delete;
    shared_memory& operator=(const shared_memory&) = delete;
    T& operator[](std::size_t i) const { return at_[i]; }

private:
    std::size_t bytes_;
    T* at_;
};

// A child process with a queue pair that is connected to `qp`. The child runs `body`.
class connected_child {
public:
    connected_child(node& here, ibv_qp* qp, const std::function<int(node&, ibv_qp*)>& body,
                    const connect_options& how = {})
        : exchange_(2), peer_([&, this] {
              node there;
              const auto mine = there.make_qp();
              exchange_[1] = there.address_of(mine.get());
              up_.open();
              if (!down_.wait())
                  return 90;
              connect(mine.get(), exchange_[1], exchange_[0], how);
              up_.open();
              const int status = body(there, mine.get());
              return ::testing::Test::HasFailure() ? 91 : status;
          }) {
        EXPECT_TRUE(up_.wait());
        exchange_[0] = here.address_of(qp);
        connect(qp, exchange_[0], exchange_[1], how);
        down_.open();
        EXPECT_TRUE(up_.wait());
    }
    child& process() { return peer_; }
    const address& remote() { return exchange_[1]; }
    gate& go() { return down_; }
    gate& done() { return up_; }

private:
    gate up_, down_;
    shared_memory<address> exchange_;
    child peer_;
};

} // namespace testing_support
