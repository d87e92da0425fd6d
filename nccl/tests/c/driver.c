/* As much of a CUDA driver as tells memory of a device from the host's: one page of 4096 bytes is a device's. */
#include <stddef.h>

char *device_page;

int cuPointerGetAttribute(unsigned int *type, int attribute, const char *address) {
  if (attribute != 2 || !device_page || address < device_page || address >= device_page + 4096) return 1;
  *type = 2;
  return 0;
}
