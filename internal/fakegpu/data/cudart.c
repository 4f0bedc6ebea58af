/* imgsmith fake, for tests: a CUDA runtime whose device memory is the heap. Interface: cuda_runtime_api.h. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

API int imgsmith_fake_gpu(void) { return 1; }

static int driver(int *count, int *version) {
	void *h = dlopen("libcuda.so.1", RTLD_LAZY);
	int (*init)(unsigned), (*get)(int *), rc;
	if (!h) return 35;
	init = (int (*)(unsigned))dlsym(h, "cuInit");
	get = (int (*)(int *))dlsym(h, "cuDriverGetVersion");
	if (!init || !get || get(version)) return 35;
	if (*version / 1000 < FAKE_RUNTIME / 1000) return 35;
	if ((rc = init(0)) != 0) return rc;
	get = (int (*)(int *))dlsym(h, "cuDeviceGetCount");
	return get ? get(count) : 35;
}
API int cudaRuntimeGetVersion(int *v) { *v = FAKE_RUNTIME; return 0; }
API int cudaDriverGetVersion(int *v) { int n; *v = 0; driver(&n, v); return 0; }
API int cudaGetDeviceCount(int *n) { int v; *n = 0; return driver(n, &v); }
API int cudaMalloc(void **p, size_t n) { int c, v, rc = driver(&c, &v); if (rc) return rc; *p = malloc(n); return *p ? 0 : 2; }
API int cudaFree(void *p) { free(p); return 0; }
API int cudaMemset(void *p, int v, size_t n) { memset(p, v, n); return 0; }
API int cudaMemcpy(void *d, const void *s, size_t n, int k) { (void)k; memcpy(d, s, n); return 0; }
API const char *cudaGetErrorName(int rc) {
	switch (rc) {
	case 0: return "cudaSuccess";
	case 2: return "cudaErrorMemoryAllocation";
	case 35: return "cudaErrorInsufficientDriver";
	case 100: return "cudaErrorNoDevice";
	default: return "cudaErrorUnknown";
	}
}
