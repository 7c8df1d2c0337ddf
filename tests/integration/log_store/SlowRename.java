import java.io.IOException;
import java.io.InterruptedIOException;
import java.net.URI;
import java.net.URISyntaxException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;

/** The local disk with a wait between looking whether a name is free and taking it, which Hadoop does in two steps. */
public class SlowRename extends DelegateToFileSystem {
  public SlowRename(URI uri, Configuration conf) throws IOException, URISyntaxException {
    super(uri, new Slow(), conf, "file", false);
  }

  private static final class Slow extends RawLocalFileSystem {
    @Override
    public boolean rename(Path from, Path to) throws IOException {
      try {
        Thread.sleep(20);
      } catch (InterruptedException e) {
        throw new InterruptedIOException();
      }
      return super.rename(from, to);
    }
  }
}
