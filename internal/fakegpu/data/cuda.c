/* imgsmith fake, for tests: a CUDA driver library without a driver. Interface: NVIDIA's public cuda.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

static int ready;

API int imgsmith_fake_gpu(void) { return 1; }

static const char *env(const char *k, const char *v) { const char *e = getenv(k); return e && *e ? e : v; }
static int num(const char *k, int v) { const char *e = getenv(k); return e && *e ? atoi(e) : v; }

/* A process that may see no device is told so, as by the real driver. */
API int cuInit(unsigned f) {
	const char *v = getenv("CUDA_VISIBLE_DEVICES");
	int code = num("IMGSMITH_FAKE_CUINIT", 0);
	(void)f;
	if (code) return code;
	if (v && (!*v || !strcmp(v, "-1"))) return 100;
	if (access("/dev/nvidia0", F_OK) && !getenv("IMGSMITH_FAKE_NODEV")) return 100;
	ready = 1;
	return 0;
}
API int cuDriverGetVersion(int *v) { *v = num("IMGSMITH_FAKE_CUDA", FAKE_CUDA); return 0; }
API int cuDeviceGetCount(int *n) { if (!ready) return 3; *n = num("IMGSMITH_FAKE_COUNT", 1); return 0; }
API int cuDeviceGet(int *d, int i) { int n; int rc = cuDeviceGetCount(&n); if (rc) return rc; if (i < 0 || i >= n) return 101; *d = i; return 0; }
API int cuDeviceGetName(char *s, int n, int d) { (void)d; snprintf(s, (size_t)n, "%s", env("IMGSMITH_FAKE_NAME", "imgsmith fake GPU")); return 0; }
API int cuDeviceGetUuid_v2(unsigned char *u, int d) { memset(u, 0, 16); u[2] = 0xfa; u[3] = 0x4e; u[15] = (unsigned char)d; return 0; }
API int cuDeviceGetUuid(unsigned char *u, int d) { return cuDeviceGetUuid_v2(u, d); }
API int cuDeviceGetAttribute(int *v, int a, int d) {
	int x = 0, y = 0;
	(void)d;
	sscanf(env("IMGSMITH_FAKE_CC", FAKE_CC), "%d.%d", &x, &y);
	if (a == 75) *v = x; else if (a == 76) *v = y; else *v = 1;
	return 0;
}
API int cuDeviceTotalMem_v2(size_t *n, int d) { (void)d; *n = FAKE_MEMORY; return 0; }
API int cuDevicePrimaryCtxRetain(void **c, int d) { (void)d; *c = (void *)1; return num("IMGSMITH_FAKE_CONTEXT", 0); }
API int cuDevicePrimaryCtxRelease_v2(int d) { (void)d; return 0; }
API int cuGetErrorName(int rc, const char **s) {
	switch (rc) {
	case 0: *s = "CUDA_SUCCESS"; break;
	case 3: *s = "CUDA_ERROR_NOT_INITIALIZED"; break;
	case 34: *s = "CUDA_ERROR_STUB_LIBRARY"; break;
	case 46: *s = "CUDA_ERROR_DEVICE_UNAVAILABLE"; break;
	case 100: *s = "CUDA_ERROR_NO_DEVICE"; break;
	case 101: *s = "CUDA_ERROR_INVALID_DEVICE"; break;
	case 802: *s = "CUDA_ERROR_SYSTEM_NOT_READY"; break;
	case 803: *s = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"; break;
	case 804: *s = "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"; break;
	case 999: *s = "CUDA_ERROR_UNKNOWN"; break;
	default: *s = NULL; return 1;
	}
	return 0;
}
