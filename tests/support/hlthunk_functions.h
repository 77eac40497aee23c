/* SPDX-License-Identifier: BSD-3-Clause
 *
 * hl-thunk's functions, and those of the virtual one for tests. Tests link by SONAME, as user programs do.
 */
#pragma once

#include "abi/hlthunk_functions.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Functions of the lab only. */
int gaudi_lab_arm_faults(const char* script);
uint64_t gaudi_lab_faults_fired(void);
void gaudi_lab_leave(void);

#ifdef __cplusplus
}
#endif
