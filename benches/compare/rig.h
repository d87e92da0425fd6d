/* The rig that takes the samples: see src/rig/mod.rs. */
#ifndef ANNULUS_RIG_H
#define ANNULUS_RIG_H

#include <stddef.h>
#include <stdint.h>

struct rig;

struct rig *rig_open(const char *path, size_t rank, size_t ranks); /* NULL: it printed why */
size_t rig_next_size(struct rig *rig);                             /* bytes; 0: no more */
int rig_rewrites(struct rig *rig);
uint64_t rig_next_sample(struct rig *rig); /* operations to run; 0: the size is done */
void rig_begin_operation(struct rig *rig);
void rig_end_operation(struct rig *rig);
void rig_close(struct rig *rig);

#endif
