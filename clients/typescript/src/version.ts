/** Version of this package. It works with servers of the same major version; before 1.0, of the same minor version. */
export const VERSION = "0.1.0";

/** Whether a client and a server of these versions understand each other. */
export function understands(client: string, server: string): boolean {
  const [major, minor] = client.split(".");
  const [otherMajor, otherMinor] = server.split(".");
  return major === otherMajor && (major !== "0" || minor === otherMinor);
}
