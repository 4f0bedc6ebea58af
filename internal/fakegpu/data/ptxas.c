/* imgsmith fake, for tests: says its version, assembles nothing. */
#include <stdio.h>
int main(void) { puts("ptxas: imgsmith fake, for tests"); return 0; }
