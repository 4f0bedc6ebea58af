/* imgsmith fake, for tests: a cuBLAS that gives a handle when there is a driver. */
#include <dlfcn.h>

#define API __attribute__((visibility("default")))

API int imgsmith_fake_gpu(void) { return 1; }
API int cublasCreate_v2(void **h) {
	void *l = dlopen("libcuda.so.1", RTLD_LAZY);
	int (*init)(unsigned) = l ? (int (*)(unsigned))dlsym(l, "cuInit") : 0;
	*h = (void *)1;
	return init && init(0) == 0 ? 0 : 1;
}
API int cublasGetVersion_v2(void *h, int *v) { (void)h; *v = 120503; return 0; }
API int cublasDestroy_v2(void *h) { (void)h; return 0; }
API const char *cublasGetStatusName(int rc) { return rc ? "CUBLAS_STATUS_NOT_INITIALIZED" : "CUBLAS_STATUS_SUCCESS"; }
