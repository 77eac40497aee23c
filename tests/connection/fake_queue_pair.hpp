// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <infiniband/verbs.h>
#include <vector>

namespace testing_support {

// Records posted work requests: libibverbs dispatches ibv_post_* through the ops table of the context.
class fake_queue_pair {
public:
    struct posted_send {
        ibv_send_wr wr;
        ibv_sge entry; // the first SGE; zero if the request has none
    };
    struct posted_receive {
        ibv_recv_wr wr;
        ibv_sge entry;
    };

    fake_queue_pair() {
        context_.ops.post_send = [](ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr**) {
            auto& self = *static_cast<fake_queue_pair*>(qp->qp_context);
            ++self.calls;
            for (; self.error == 0 && wr != nullptr; wr = wr->next)
                self.sends.push_back({*wr, wr->num_sge != 0 ? *wr->sg_list : ibv_sge{}});
            return self.error;
        };
        context_.ops.post_recv = [](ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr**) {
            auto& self = *static_cast<fake_queue_pair*>(qp->qp_context);
            ++self.calls;
            for (; self.error == 0 && wr != nullptr; wr = wr->next)
                self.receives.push_back({*wr, wr->num_sge != 0 ? *wr->sg_list : ibv_sge{}});
            return self.error;
        };
        qp_.context = &context_;
        qp_.qp_context = this;
    }
    fake_queue_pair(const fake_queue_pair&) = delete;
    fake_queue_pair& operator=(const fake_queue_pair&) = delete;

    ibv_qp* get() { return &qp_; }

    std::vector<posted_send> sends;
    std::vector<posted_receive> receives;
    unsigned calls = 0;
    int error = 0; // returned by ibv_post_*

private:
    ibv_context context_{};
    ibv_qp qp_{};
};

} // namespace testing_support
